// The list of conversations. Those that need attention come first.
import { get } from './api.js';
import { agentOf, badge, stateOf, whyOf } from './attention.js';
import { ago, h, pause, problem, show } from './render.js';

const pageSize = 20;

export async function showConversations(main, { signal, session }) {
  const filter = { text: '', state: '', trigger: '' };
  let items = [];
  let next = null;
  let pages = 1;
  const agents = new Map();

  const list = h('div', { class: 'list', 'aria-busy': 'true' });
  const text = h('input', { type: 'search', placeholder: 'Filter by title or repository', 'aria-label': 'Filter by title or repository' });
  text.addEventListener('input', () => { filter.text = text.value.toLowerCase(); draw(); });
  const choice = (label, name, options, then) => h('select', {
    'aria-label': label, onchange: (event) => { filter[name] = event.target.value; then(); },
  }, options.map(([value, word]) => h('option', { value }, word)));
  show(main,
    h('div', { class: 'headline' }, h('h1', null, 'Conversations'), h('a', { class: 'button main', href: '#/new' }, 'New conversation')),
    !session.settings_stored && h('p', { class: 'hint' }, 'No settings yet: ', h('a', { href: '#/settings' }, 'choose a model first'), '.'),
    h('div', { class: 'filters', role: 'search' }, text,
      choice('State', 'state', [['', 'All states'], ['attention', 'Needs attention'], ['STARTING', 'Starting'], ['RUNNING', 'Running'], ['STOPPED', 'Stopped']], draw),
      choice('Source', 'trigger', [['', 'All sources'], ['gui', 'Message'], ['suggested_task', 'Suggested task'], ['microagent_management', 'Microagent']], reload)),
    list);

  const row = (item) => {
    const state = stateOf(item, agents.get(item.conversation_id));
    return h('li', null, h('a', { class: 'row', href: `#/c/${item.conversation_id}` },
      h('span', { class: 'title' }, item.title), badge(state),
      h('span', { class: 'about' }, item.selected_repository && `${item.selected_repository}${item.selected_branch ? ` @ ${item.selected_branch}` : ''}`, ' ', ago(item.last_updated_at)),
      state.attention && whyOf(item) && h('span', { class: 'why' }, whyOf(item))));
  };
  const section = (title, entries) => entries.length > 0 && h('section', { 'aria-label': title }, h('h2', null, title), h('ul', null, entries.map(row)));

  function draw() {
    const shown = items.filter((item) => {
      const attention = stateOf(item, agents.get(item.conversation_id)).attention;
      const wanted = filter.state === '' || (filter.state === 'attention' ? attention : item.status === filter.state);
      return wanted && `${item.title} ${item.selected_repository || ''}`.toLowerCase().includes(filter.text);
    });
    const needs = shown.filter((item) => stateOf(item, agents.get(item.conversation_id)).attention);
    const others = shown.filter((item) => !needs.includes(item));
    const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
    show(list,
      items.length === 0 && h('div', { class: 'empty' }, h('p', null, 'No conversations yet.'), h('p', null, h('a', { href: '#/new' }, 'Start your first one'), '.')),
      items.length > 0 && shown.length === 0 && h('p', { class: 'empty' }, 'No conversation matches the filter.'),
      section('Needs attention', needs), section(needs.length > 0 ? 'Others' : 'All', others),
      next && h('button', { type: 'button', onclick: () => { pages += 1; refresh(); } }, 'Show more'));
    if (focused) [...list.querySelectorAll('a')].find((a) => a.getAttribute('href') === focused)?.focus();
    list.setAttribute('aria-busy', 'false');
  }

  // refresh reads the pages that are shown, then the agent states of running conversations.
  async function refresh() {
    const found = [];
    let from = '';
    for (let page = 0; page < pages; page += 1) {
      const query = new URLSearchParams({ limit: pageSize });
      if (from) query.set('page_id', from);
      if (filter.trigger) query.set('conversation_trigger', filter.trigger);
      const answer = await get(`/api/conversations?${query}`, signal);
      found.push(...answer.results);
      from = next = answer.next_page_id;
      if (!next) break;
    }
    items = found;
    draw();
    const running = items.filter((item) => item.status === 'RUNNING').slice(0, pageSize);
    await Promise.all(running.map(async (item) => agents.set(item.conversation_id, await agentOf(item, signal))));
    if (!signal.aborted && running.length > 0) draw();
  }
  async function reload() {
    pages = 1;
    try {
      await refresh();
    } catch (error) {
      if (!signal.aborted) show(list, problem(error, reload));
    }
  }

  await refresh();
  keepFresh();
  async function keepFresh() {
    while (!signal.aborted) {
      await pause(5000, signal);
      if (signal.aborted || document.visibilityState !== 'visible') continue;
      try { await refresh(); } catch { /* keep the old list; the next refresh may succeed */ }
    }
  }
}
