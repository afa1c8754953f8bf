// What a page must keep to for everybody to be able to use it, after the rules of
// WCAG 2.2 (AA) that can be checked from the document and its computed styles.
// The value of this script is a list of what breaks them.
(() => {
  const found = [];
  const say = (rule, node, more = '') => found.push(`${rule}: ${where(node)} ${more}`.trim());
  const where = (node) => {
    const id = node.id ? `#${node.id}` : '';
    const text = (node.innerText ?? '').trim().slice(0, 30);
    return `<${node.localName}${id}${node.className && typeof node.className === 'string' ? `.${node.className.trim().replaceAll(' ', '.')}` : ''}> ${JSON.stringify(text)}`;
  };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const dialog = document.querySelector('dialog[open]');
  const scope = dialog ?? document.body; // behind a modal dialog nothing can be reached
  const unseen = (node) => node.closest('.unseen, .skip') !== null;
  const visible = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && node.checkVisibility({ visibilityProperty: true });
  };

  // Colours.
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const parse = (css) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3])).concat(1);
  const ground = (node) => { // the colour behind what is in a node
    const layers = [];
    for (let n = node; n; n = n.parentElement) {
      const color = parse(getComputedStyle(n).backgroundColor);
      layers.push(color);
      if (color[3] === 1) break;
    }
    const base = parse(matchMedia('(prefers-color-scheme: dark)').matches ? '#121212' : '#fff');
    return layers.reduceRight((below, layer) => over(layer, below), base);
  };
  const opacity = (node) => { let o = 1; for (let n = node; n; n = n.parentElement) o *= Number(getComputedStyle(n).opacity); return o; };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const tell = (color) => `rgb(${color.slice(0, 3).map(Math.round)})`;
  const need = (rule, node, front, back, least) => {
    const ratio = contrast(front, back);
    if (ratio < least) say(rule, node, `${ratio.toFixed(2)}:1 of ${tell(front)} on ${tell(back)}, ${least} needed`);
  };

  // Text: 4.5:1, large text 3:1.
  const walker = document.createTreeWalker(scope, NodeFilter.SHOW_TEXT);
  const done = new Set();
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || done.has(node) || unseen(node) || !visible(node) || node.closest('option, noscript')) continue;
    done.add(node);
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const back = ground(node);
    const color = parse(style.color);
    need('contrast of text', node, over([...color.slice(0, 3), color[3] * opacity(node)], back), back, large ? 3 : 4.5);
  }
  for (const input of all('input[placeholder]', scope).filter(visible)) {
    need('contrast of the placeholder', input, parse(getComputedStyle(input, '::placeholder').color), ground(input), 4.5);
  }

  // Controls and graphics: 3:1 against what is around them.
  const around = (node) => ground(node.parentElement);
  for (const node of all('button:not(.quiet):not(.res), input:not([type=checkbox]), select', scope).filter(visible)) {
    const style = getComputedStyle(node);
    const edge = over(parse(style.borderTopColor), around(node));
    const fill = ground(node);
    const best = contrast(edge, around(node)) > contrast(fill, around(node)) ? edge : fill;
    need('contrast of the control', node, best, around(node), 3);
  }
  for (const node of all('.dot, .gauge i, rect.run', scope).filter(visible)) {
    const { fill, backgroundColor } = getComputedStyle(node);
    need('contrast of the graphic', node, parse(node.localName === 'rect' ? fill : backgroundColor), around(node), 3);
  }

  // Names, sizes and focus of what can be used.
  const textOf = (node) => [...node.childNodes].map((n) => (n.nodeType === Node.TEXT_NODE ? n.data : n.ariaHidden === 'true' || n.localName === 'option' ? '' : textOf(n))).join('');
  const labelled = (node) => (node.getAttribute('aria-labelledby') ?? '').split(' ').map((id) => document.getElementById(id)?.textContent ?? '').join(' ').trim();
  const nameOf = (node) => labelled(node) || node.getAttribute('aria-label') || [...(node.labels ?? [])].map(textOf).join(' ').trim() || (node.matches('input, select') ? '' : node.textContent.trim());
  const usable = all('a[href], button, input, select, textarea, summary, [tabindex]:not([tabindex="-1"])', scope).filter((n) => visible(n) && !n.disabled);
  for (const node of usable) {
    if (!nameOf(node)) say('no name', node);
    const label = node.getAttribute('aria-label');
    const words = node.matches('button, a') ? node.innerText.trim() : '';
    if (label && words && !label.toLowerCase().includes(words.toLowerCase())) say('the name lacks the visible text', node, label);
    for (let n = node; n; n = n.parentElement) if (getComputedStyle(n).clipPath !== 'none') say('can be reached, and is not seen', node);
    if (node.tabIndex > 0) say('a tab order of its own', node);
    if (node.closest('[aria-hidden=true]')) say('can be reached, and is hidden from screen readers', node);
    const box = (node.closest('label') ?? node).getBoundingClientRect();
    if (!unseen(node) && (box.width < 24 || box.height < 24)) say('target smaller than 24 pixels', node, `${Math.round(box.width)}×${Math.round(box.height)}`);
  }
  const before = document.activeElement;
  for (const node of usable) {
    node.focus();
    if (document.activeElement !== node) continue; // scrolled away, or behind a dialog
    const style = getComputedStyle(node);
    if (!node.matches(':focus-visible')) say('focus is not shown', node);
    else if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) say('focus has no outline', node, style.outline);
    else need('contrast of the focus', node, parse(style.outlineColor), around(node), 3);
  }
  before?.focus({ preventScroll: true });

  // Structure.
  if (!document.documentElement.lang) say('no language', document.documentElement);
  if (!document.title.trim()) say('no title', document.documentElement);
  if (/user-scalable\s*=\s*no|maximum-scale/.test(document.querySelector('meta[name=viewport]').content)) say('zoom is forbidden', document.documentElement);
  for (const landmark of ['main', 'header', 'nav']) {
    if (all(landmark).length !== 1) say(`${all(landmark).length} times <${landmark}>`, document.body);
  }
  for (const node of all('body > *').filter(visible)) {
    if (!node.matches('header, main, dialog, .unseen, noscript')) say('outside of every landmark', node);
  }
  for (const node of all('nav, aside, section:has(h1, h2), dialog').filter(visible)) {
    if (!node.getAttribute('aria-label') && !labelled(node)) say('a region without a name', node);
  }
  const headings = all('h1, h2, h3, h4', scope).filter(visible);
  if (!dialog && headings.filter((h) => h.localName === 'h1').length !== 1) say('not one h1', scope);
  headings.reduce((last, h) => {
    const level = Number(h.localName[1]);
    if (level > last + 1) say('a level of headings is left out', h);
    if (!h.textContent.trim()) say('an empty heading', h);
    return level;
  }, dialog ? 1 : 0);
  for (const img of all('img')) if (!img.hasAttribute('alt')) say('an image without alt', img);
  for (const th of all('th')) if (!th.getAttribute('scope') && visible(th)) say('a heading cell without scope', th);
  for (const list of all('ul, ol').filter(visible)) {
    for (const child of list.children) if (child.localName !== 'li') say('not an item of the list', child);
  }
  for (const li of all('li')) if (!li.parentElement.matches('ul, ol')) say('an item without a list', li);
  for (const dl of all('dl')) for (const child of dl.children) if (!/^(dt|dd)$/.test(child.localName)) say('not an item of the list of terms', child);

  // ARIA.
  const known = new Set(['label', 'labelledby', 'describedby', 'hidden', 'current', 'live', 'expanded', 'pressed', 'invalid', 'keyshortcuts']);
  const values = { hidden: ['true', 'false'], current: ['page', 'true', 'false'], live: ['polite', 'assertive', 'off'], expanded: ['true', 'false'], pressed: ['true', 'false'], invalid: ['true', 'false'] };
  const roles = new Set(['status', 'alert', 'group', 'region', 'img']);
  const ids = new Map();
  for (const node of all('*')) {
    if (node.id) ids.set(node.id, [...(ids.get(node.id) ?? []), node]);
    const role = node.getAttribute('role');
    if (role && !roles.has(role)) say('an unexpected role', node, role);
    if (role === 'img' && !node.getAttribute('aria-label')) say('a picture without a name', node);
    for (const { name, value } of node.attributes) {
      if (!name.startsWith('aria-')) continue;
      const which = name.slice(5);
      if (!known.has(which)) say('an unknown attribute', node, name);
      if (values[which] && !values[which].includes(value)) say('a wrong value', node, `${name}=${value}`);
      if (/labelledby|describedby/.test(which)) for (const id of value.split(' ')) if (!document.getElementById(id)) say('names nothing', node, `${name}=${value}`);
      if (which === 'label' && !node.matches('nav, section, aside, main, ul, ol, pre, table, dialog, button, a, input, select, [role]')) say('a label that is not read', node);
      if (which === 'pressed' && node.localName !== 'button') say('pressed, and no button', node);
    }
  }
  for (const [id, nodes] of ids) if (nodes.length > 1) say('an id that is there twice', nodes[1], id);
  for (const id of ['say', 'link', 'problem', 'break-problem', 'access-problem', 'race-status']) {
    if (!/^(status|alert)$/.test(document.getElementById(id)?.getAttribute('role') ?? '')) say('changes are not announced', document.body, id);
  }
  for (const row of all('tr.chosen')) if (row.querySelector('[aria-current=true]') === null) say('the chosen row is not announced', row);
  return found;
})()
