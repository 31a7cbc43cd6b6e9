export function programView() { return { node: document.createElement('div'), show() {} }; }
