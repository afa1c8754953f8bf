// What the address says is shown: #/locks/RESOURCE?find=…&sort=…&group=1&open=PREFIX, or #/blocked/NAME.
// A link to it shows the same to whoever may see it.

export function read() {
  const [, page, resource, query] = location.hash.match(/^#\/(locks|blocked|contention|nodes|race)(?:\/([^?]+))?(?:\?(.*))?$/) ?? [, 'locks', '', ''];
  const params = new URLSearchParams(query);
  let name = '';
  try {
    name = decodeURIComponent(resource ?? '');
  } catch { /* a link that was cut off */ }
  return {
    page, resource: page === 'locks' ? name : '', name: page === 'blocked' ? name : '', find: params.get('find') ?? '', sort: params.get('sort') ?? 'name',
    group: params.get('group') === '1', open: new Set(params.getAll('open')),
  };
}

export function hash({ page, name, resource, find, sort, group, open }) {
  if (page === 'blocked' && name) return `#/blocked/${encodeURIComponent(name)}`;
  if (page !== 'locks') return `#/${page}`;
  const params = new URLSearchParams();
  if (find) params.set('find', find);
  if (sort !== 'name') params.set('sort', sort);
  if (group) {
    params.set('group', '1');
    for (const prefix of open) params.append('open', prefix);
  }
  const query = params.toString();
  return `#/locks${resource ? `/${encodeURIComponent(resource)}` : ''}${query && `?${query}`}`;
}
