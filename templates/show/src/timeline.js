export function timelineView() { return { node: document.createElement('div'), show() {} }; }
