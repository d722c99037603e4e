// One conversation: what it is, what happens in it, what it changed.
import { Answer, send } from './answer.js';
import { call, get, pathOf, post } from './api.js';
import { badge, stateOf } from './attention.js';
import { showChanges } from './changes.js';
import { showFiles } from './files.js';
import { follow, watch } from './follow.js';
import { Cost, Plan } from './plan.js';
import { action, h, notice, problem, show } from './render.js';
import { chime } from './sound.js';
import { Timeline } from './timeline.js';

const recent = 30000; // what is older than this happened before the page was opened

// soundWanted says whether the settings ask for a sound.
async function soundWanted(session, signal) {
  if (!session.settings_stored) return false;
  try {
    return (await get('/api/settings', signal)).enable_sound_notifications === true;
  } catch {
    return false;
  }
}

// Head is the title, the state, and what can be done with the whole.
class Head {
  constructor(id) {
    this.id = id;
    this.cost = new Cost();
    this.element = h('div', { class: 'head' });
    this.shown = '';
  }

  draw(item, agent, connected) {
    const state = stateOf(item, agent);
    const now = JSON.stringify([item, agent, connected]);
    if (now === this.shown) return; // so that nobody loses the button that they are at
    this.shown = now;
    document.title = `${item.title} – Parley`;
    const focused = this.element.contains(document.activeElement) ? document.activeElement.textContent : null;
    show(this.element,
      h('div', { class: 'headline' }, h('h1', null, item.title), badge(state), !connected && h('span', { class: 'badge alert', role: 'status' }, 'Connecting…'),
        h('div', { class: 'buttons' }, this.buttons(item, agent))),
      h('p', { class: 'about' }, item.selected_repository, item.selected_branch && ` @ ${item.selected_branch}`, ' ', this.cost.element),
      item.status !== 'RUNNING' && (item.reason || item.message) && h('p', { class: state.attention ? 'why failed' : 'why', role: state.attention ? 'alert' : null },
        h('strong', null, item.reason === 'Suspended' ? 'Stopped on request' : item.reason), item.message && item.reason !== 'Suspended' && `: ${item.message}`));
    if (focused) [...this.element.querySelectorAll('button')].find((button) => button.textContent === focused)?.focus();
  }

  buttons(item, agent) {
    const running = item.status === 'RUNNING';
    return [
      running && agent === 'running' && action('Pause', () => send(this.id, 'paused')),
      running && agent === 'paused' && action('Resume', () => send(this.id, 'running')),
      item.status === 'STOPPED' ? action('Start', () => post(pathOf(this.id, '/start'), {}), { class: 'main' }) : action('Stop', () => post(pathOf(this.id, '/stop'))),
      action('Rename', () => this.rename(item)),
      action('Delete', async () => {
        if (!confirm(`Delete “${item.title}” and all that belongs to it?`)) return;
        await call('DELETE', pathOf(this.id));
        location.hash = '#/';
      }),
    ];
  }

  // rename in a dialog, which Escape closes.
  rename(item) {
    const title = h('input', { value: item.title, maxlength: 200, required: true, 'aria-label': 'Title' });
    const dialog = h('dialog', { 'aria-label': 'Rename' }, h('form', { method: 'dialog' }, h('label', null, 'Title', title),
      h('div', { class: 'buttons' }, h('button', { class: 'main', value: 'ok' }, 'Rename'), h('button', { value: '', formnovalidate: true }, 'Cancel'))));
    document.body.append(dialog);
    dialog.addEventListener('close', async () => {
      dialog.remove();
      if (dialog.returnValue !== 'ok') return;
      try {
        await call('PATCH', pathOf(this.id), { title: title.value });
        notice('Renamed');
      } catch (error) {
        notice(error.message, 'error');
      }
    });
    dialog.showModal();
    title.select();
  }
}

export async function showConversation(main, { signal, session, params: [id, tab = 'talk'] }) {
  let item = await get(pathOf(id), signal);
  if (!item) {
    show(main, h('p', { class: 'empty' }, 'There is no such conversation. ', h('a', { href: '#/' }, 'See all'), '.'));
    return;
  }
  let agent = null;
  let connected = true;
  let left = false; // what it left was asked for
  const sound = soundWanted(session, signal);
  const head = new Head(id);
  const place = h('div', { class: 'place' });
  const link = (name, to, word) => h('a', { href: `#/c/${id}${to}`, 'aria-current': tab === name ? 'page' : null }, word);
  show(main, h('div', { class: 'conversation' }, head.element,
    h('nav', { class: 'tabs', 'aria-label': 'Parts of the conversation' }, link('talk', '', 'Conversation'), link('changes', '/changes', 'Changes'), link('files', '/files', 'Files')),
    place));

  const parts = tab === 'talk' ? { timeline: new Timeline(), plan: new Plan(), answer: new Answer(id) } : null;
  if (parts) show(place, h('div', { class: 'talk' }, parts.timeline.element, parts.plan.element), parts.answer.element);
  const draw = () => {
    const does = item.status === 'RUNNING' ? agent : null;
    head.draw(item, does, connected);
    parts?.answer.fit(item, does, () => parts.timeline.asked());
  };
  const told = (now) => {
    if (!now) {
      show(main, h('p', { class: 'empty' }, 'The conversation was deleted. ', h('a', { href: '#/' }, 'See all'), '.'));
      return;
    }
    const before = item.status;
    item = now;
    draw();
    if (now.status === 'STOPPED' && !left) head.cost.ask(id, signal);
    left = now.status === 'STOPPED';
    if (tab === 'files' && before !== now.status) showFiles(place, item, signal);
  };
  draw();
  if (tab === 'changes') showChanges(place, id, signal);
  if (tab === 'files') showFiles(place, item, signal);

  const happened = async (event) => {
    parts?.timeline.take(event);
    parts?.plan.take(event);
    if (event.observation !== 'agent_state_changed') return;
    const before = agent;
    agent = event.extras.agent_state;
    draw();
    if (item.status === 'RUNNING') head.cost.ask(id, signal);
    const ended = before === 'running' && ['awaiting_user_input', 'awaiting_user_confirmation', 'finished', 'error'].includes(agent);
    if (ended && Date.now() - new Date(`${event.timestamp}Z`) < recent && await sound) chime();
  };
  const anew = () => {
    agent = null;
    parts?.timeline.clear();
    parts?.plan.clear();
    draw();
  };
  watch(id, told, signal);
  follow(id, { item: told, event: happened, anew, connected: (is) => { connected = is; draw(); }, signal })
    .catch((error) => { if (!signal.aborted) show(main, problem(error)); });
}
