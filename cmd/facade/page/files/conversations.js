// The list of conversations. Conversations that need attention come first.
import { call, get, pathOf, post } from './api.js';
import { agentOf, badge, stateOf, whyOf } from './attention.js';
import { isHidden, untilShown } from './follow.js';
import { action, ago, h, pause, problem, show } from './render.js';

const pageSize = 20;
const most = 100; // entries per request

const states = [['', 'All states'], ['attention', 'Needs attention'], ['STARTING', 'Starting'], ['RUNNING', 'Running'], ['STOPPED', 'Stopped']];
const triggers = [['', 'All sources'], ['gui', 'Message'], ['suggested_task', 'Suggested task'], ['microagent_management', 'Microagent']];

export async function showConversations(main, { signal, session, params: [address = ''] }) {
  // The filter is part of the address, so that the browser's Back button restores it.
  const given = new URLSearchParams(address);
  const filter = { query: given.get('query') || '', state: given.get('state') || '', trigger: given.get('trigger') || '' };
  let items = [];
  let next = null;
  let wanted = pageSize;
  let latest = 0; // the number of the last refresh; responses to earlier refreshes are ignored
  let drawn = '';
  const agents = new Map();
  const stateNow = (item) => stateOf(item, item.status === 'RUNNING' ? agents.get(item.conversation_id) : null);

  const list = h('div', { class: 'list', 'aria-busy': 'true' });
  const text = h('input', { type: 'search', value: filter.query, maxlength: 200, placeholder: 'Search titles and repositories', 'aria-label': 'Search titles and repositories' });
  let typing = null;
  text.addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => { filter.query = text.value.trim(); reload(); }, 250);
  });
  const choice = (label, name, options) => {
    const select = h('select', { 'aria-label': label, onchange: () => { filter[name] = select.value; reload(); } }, options.map(([value, word]) => h('option', { value }, word)));
    select.value = filter[name];
    return select;
  };
  show(main,
    h('div', { class: 'headline' }, h('h1', null, 'Conversations'), h('a', { class: 'button main', href: '#/new' }, 'New conversation')),
    !session.settings_stored && h('p', { class: 'hint' }, 'No settings yet: ', h('a', { href: '#/settings' }, 'choose a model first'), '.'),
    h('div', { class: 'filters', role: 'search' }, text, choice('State', 'state', states), choice('Source', 'trigger', triggers)),
    list);

  const change = (label, item, work) => action(label, async () => {
    if (!confirm(`${label} “${item.title}”?${label === 'Delete' ? ' All its data is deleted.' : ''}`)) return;
    await work();
    await refresh();
  }, { class: 'link', 'data-focus': `${label} ${item.conversation_id}` });
  const row = (item) => {
    const state = stateNow(item);
    const id = item.conversation_id;
    return h('li', null, h('a', { class: 'row', href: `#/c/${id}`, 'data-focus': id },
      h('span', { class: 'title' }, item.title), badge(state),
      h('span', { class: 'about' }, item.selected_repository && `${item.selected_repository}${item.selected_branch ? ` @ ${item.selected_branch}` : ''}`, ' ', ago(item.last_updated_at)),
      state.attention && whyOf(item) && h('span', { class: 'why' }, whyOf(item))),
    h('div', { class: 'buttons' },
      item.pull_request && h('a', { class: 'small', href: item.pull_request, target: '_blank', rel: 'noopener noreferrer', 'data-focus': `pull ${id}` }, 'Pull request'),
      item.status !== 'STOPPED' && change('Stop', item, () => post(pathOf(id, '/stop'))),
      h('a', { class: 'small', href: `#/new?from=${id}`, 'data-focus': `copy ${id}` }, 'Duplicate'),
      change('Delete', item, () => call('DELETE', pathOf(id)))));
  };
  const section = (title, entries) => entries.length > 0 && h('section', { 'aria-label': title }, h('h2', null, title), h('ul', null, entries.map(row)));

  function draw() {
    const shown = filter.state === 'attention' ? items.filter((item) => stateNow(item).attention) : items;
    const now = JSON.stringify([shown, [...agents], next, Math.floor(Date.now() / 60000)]);
    if (now === drawn) return; // a redraw could move a row away from under the pointer
    drawn = now;
    const needs = shown.filter((item) => stateNow(item).attention);
    const others = shown.filter((item) => !needs.includes(item));
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const filtered = Object.values(filter).some(Boolean);
    document.title = `${needs.length > 0 ? `(${needs.length}) ` : ''}Conversations – Parley`;
    show(list,
      shown.length === 0 && !filtered && h('div', { class: 'empty' }, h('p', null, 'No conversations yet.'), h('p', null, h('a', { href: '#/new' }, 'Start your first one'), '.')),
      shown.length === 0 && filtered && h('p', { class: 'empty' }, 'No conversation matches the filter.'),
      section('Needs attention', needs), section(needs.length > 0 ? 'Others' : 'All', others),
      next && action('Show more', () => { wanted += pageSize; return refresh(); }, { 'data-focus': 'more' }));
    if (focused) [...list.querySelectorAll('[data-focus]')].find((element) => element.dataset.focus === focused)?.focus();
    list.setAttribute('aria-busy', 'false');
  }

  const ask = (more) => {
    const query = new URLSearchParams(more);
    if (filter.query) query.set('query', filter.query);
    if (filter.trigger) query.set('conversation_trigger', filter.trigger);
    return get(`/api/conversations?${query}`, signal);
  };

  // refresh reads the entries that are shown. Without a filter by state, it also reads the
  // conversations that need attention, even old ones. At the end it reads the agent states of
  // running conversations.
  async function refresh() {
    latest += 1;
    const mine = latest;
    const byState = { '': {}, attention: { attention: true } }[filter.state] || { status: filter.state };
    const found = [];
    let from = null;
    do {
      const answer = await ask({ ...byState, limit: Math.min(most, wanted - found.length), ...(from && { page_id: from }) });
      found.push(...answer.results);
      from = answer.next_page_id;
    } while (from && found.length < wanted);
    const urgent = filter.state === '' && from ? (await ask({ attention: true, limit: pageSize })).results : [];
    const active = filter.state === 'attention' || (filter.state === '' && from) ? (await ask({ status: 'RUNNING', limit: pageSize })).results : [];
    const running = [...new Map([...found, ...active].filter((item) => item.status === 'RUNNING').map((item) => [item.conversation_id, item])).values()].slice(0, 2 * pageSize);
    if (mine !== latest) return;
    const use = () => {
      const extra = [...urgent, ...active].filter((item) => stateNow(item).attention);
      items = [...new Map([...found, ...extra].map((item) => [item.conversation_id, item])).values()];
      next = from;
      draw();
    };
    use();
    await Promise.all(running.map(async (item) => agents.set(item.conversation_id, await agentOf(item, signal))));
    if (!signal.aborted && mine === latest && running.length > 0) use();
  }
  async function reload() {
    if (signal.aborted) return;
    wanted = pageSize;
    const set = new URLSearchParams(Object.entries(filter).filter(([, value]) => value));
    history.replaceState(null, '', `#/${set.size > 0 ? `?${set}` : ''}`);
    try {
      await refresh();
    } catch (error) {
      drawn = '';
      if (!signal.aborted) show(list, problem(error, reload));
    }
  }

  await refresh();
  keepFresh();
  async function keepFresh() {
    while (!signal.aborted) {
      await (isHidden() ? untilShown(signal) : pause(5000, signal));
      if (signal.aborted) return;
      try { await refresh(); } catch { /* keep the old list; the next refresh may succeed */ }
    }
  }
}
