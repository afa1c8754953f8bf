// Search in the browser, which finds sections: the index is read at the first key, and every word must
// occur. And a button beside each block of code that copies it.
'use strict';
const form = document.getElementById('search'), input = form.querySelector('input'), found = document.getElementById('found');
const index = document.getElementById('search-index').href;
let pages;
form.hidden = false;

function excerpt(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 60);
  return (at ? '…' : '') + text.slice(at, at + 160) + '…';
}

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  pages ??= fetch(index).then((r) => r.json());
  const all = await pages;
  const score = ({ page, title, text }) => {
    let sum = 0;
    for (const w of words) {
      const inTitle = title.toLowerCase().includes(w), inPage = page.toLowerCase().includes(w), times = text.toLowerCase().split(w).length - 1;
      if (!inTitle && !inPage && !times) return 0;
      sum += (inTitle ? 50 : 0) + (inPage ? 10 : 0) + Math.min(times, 20);
    }
    return sum;
  };
  const hits = all.map((p) => [score(p), p]).filter(([s]) => s).sort((a, b) => b[0] - a[0]).slice(0, 12);
  found.replaceChildren(...hits.map(([, p]) => {
    const li = document.createElement('li'), a = document.createElement('a'), small = document.createElement('small');
    a.href = new URL(p.url, index);
    a.textContent = p.page ? `${p.page} › ${p.title}` : p.title;
    small.textContent = excerpt(p.text, words[0]);
    li.append(a, small);
    return li;
  }));
  if (words.length && !hits.length) found.textContent = 'Nothing found.';
  found.hidden = !words.length;
}

input.addEventListener('input', search);
form.addEventListener('submit', (e) => { e.preventDefault(); found.querySelector('a')?.click(); });
document.addEventListener('keydown', (e) => {
  if (e.key === '/' && document.activeElement !== input) { e.preventDefault(); input.focus(); }
  if (e.key === 'Escape') found.hidden = true;
});

for (const pre of document.querySelectorAll('main pre')) {
  const around = document.createElement('div'), button = document.createElement('button');
  around.className = 'code';
  button.type = 'button';
  const say = (text, name) => {
    button.textContent = text;
    button.setAttribute('aria-label', name);
  };
  say('Copy', 'Copy this code');
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(pre.textContent);
    say('Copied', 'Copied');
    setTimeout(say, 1500, 'Copy', 'Copy this code');
  });
  pre.replaceWith(around);
  around.append(pre, button);
}
