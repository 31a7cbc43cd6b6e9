export function resultsView() { return { node: document.createElement('div'), show() {} }; }
