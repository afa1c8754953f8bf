// Whether what is shown has its place: nothing wider than the window, nothing that
// overlaps, is cut off, or has no room. The value is a list of what is wrong.
(() => {
  const found = [];
  const wordsOf = (node, most) => JSON.stringify((node.innerText ?? node.textContent).slice(0, most)); // a shape has no innerText
  const say = (what, node, more = '') => found.push(`${what}: <${node.localName} id=${node.id} class=${node.getAttribute('class')}> ${wordsOf(node, 40)} ${more}`);
  const visible = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getBoundingClientRect().width > 0 && !node.closest('.unseen, .skip');
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) say('wider than the window', document.body, `${document.documentElement.scrollWidth} > ${width}`);
  const hidden = (node) => getComputedStyle(node).clipPath !== 'none' || node.closest('thead') && getComputedStyle(node.closest('thead')).clipPath !== 'none';
  // textBox is the place of a text, and of each of its lines.
  const textBox = (text) => {
    const range = document.createRange();
    range.selectNodeContents(text);
    return [range.getBoundingClientRect(), [...range.getClientRects()]];
  };
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !visible(node) || hidden(node) || node.closest('option, noscript')) continue;
    const [box, lines] = textBox(text);
    if (box.width === 0) continue;
    // A name may be shortened, if a title has it in full.
    const shortened = node.closest('.res, .holder, #access');
    let inside = false;
    for (let n = node; n && n !== document.body; n = n.parentElement) {
      const style = getComputedStyle(n);
      const around = n.getBoundingClientRect();
      if (style.overflowX !== 'visible' && style.overflowX !== 'auto' && (box.right > around.right + 1 || box.left < around.left - 1)) {
        inside = shortened && style.textOverflow === 'ellipsis' && (n.title || n.id === 'access');
        if (!inside) say('cut off', node, `${Math.round(box.left)}–${Math.round(box.right)} in ${Math.round(around.left)}–${Math.round(around.right)}`);
        break;
      }
    }
    if (!inside && (box.right > width + 1 || box.left < -1)) say('outside of the window', node);
    if (!shortened && !node.matches('kbd') && node.closest('header, .bar, #table, .strip, .node-table, .track, #facts, .command, .bulk')) boxes.push(...lines.map((line) => [line, node]));
  }
  for (const control of document.querySelectorAll('header button, header a, .bar input, .bar select, .bar button, .pick input, .gauge, .command button, #facts button')) {
    if (!visible(control) || hidden(control)) continue;
    const box = control.getBoundingClientRect();
    boxes.push([box, control]);
    if (box.right > width + 1 || box.left < -1) say('outside of the window', control);
  }
  for (let i = 0; i < boxes.length; i++) {
    for (let j = i + 1; j < boxes.length; j++) {
      const [[a, x], [b, y]] = [boxes[i], boxes[j]];
      if (x === y || x.contains(y) || y.contains(x)) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) say('overlaps', x, `with ${y.localName} ${wordsOf(y, 30)}`);
    }
  }
  // Columns have room, and gauges are alike.
  for (const th of document.querySelectorAll('th')) if (visible(th) && !hidden(th) && th.clientWidth < 40) say('a column without room', th, `${th.clientWidth}`);
  for (const res of document.querySelectorAll('.res')) if (visible(res) && res.clientWidth < 90) say('a name without room', res, `${res.clientWidth}`);
  const gauges = [...document.querySelectorAll('.gauge')].filter(visible).map((g) => Math.round(g.getBoundingClientRect().width));
  if (new Set(gauges).size > 1) say('gauges of several widths', document.body, [...new Set(gauges)].join(', '));
  if (gauges.some((w) => w < 60)) say('gauges without room', document.body, gauges[0]);
  return found.slice(0, 20);
})()
