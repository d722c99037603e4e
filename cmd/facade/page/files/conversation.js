// One conversation: its state, its events, its changes and its files.
import { Answer, send } from './answer.js';
import { call, get, pathOf, post } from './api.js';
import { badge, stateOf, waiting } from './attention.js';
import { showChanges } from './changes.js';
import { showFiles } from './files.js';
import { follow, watch } from './follow.js';
import { notifyButton, notifyTurn } from './notify.js';
import { Cost, Plan } from './plan.js';
import { action, h, linkTo, notice, problem, show } from './render.js';
import { chime } from './sound.js';
import { Timeline } from './timeline.js';

const recent = 30000; // in milliseconds; older events make no sound

async function soundWanted(session, signal) {
  if (!session.settings_stored) return false;
  try {
    return (await get('/api/settings', signal)).enable_sound_notifications === true;
  } catch {
    return false;
  }
}

// Head shows the title, the state and the buttons for the whole conversation.
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
    if (now === this.shown) return; // a redraw would lose the focus
    this.shown = now;
    document.title = `${state.turn ? '● ' : ''}${item.title} – Parley`;
    const focused = this.element.contains(document.activeElement) ? document.activeElement.textContent : null;
    show(this.element,
      h('div', { class: 'headline' }, h('h1', null, item.title), badge(state), !connected && h('span', { class: 'badge alert', role: 'status' }, 'Connecting…'),
        h('div', { class: 'buttons' }, this.buttons(item, agent))),
      h('p', { class: 'about' }, item.selected_repository, item.selected_branch && ` @ ${item.selected_branch}`, ' ', this.cost.element, item.pull_request && [' ', linkTo(item.pull_request)]),
      item.status !== 'RUNNING' && (item.reason || item.message) && h('p', { class: state.attention ? 'why failed' : 'why', role: state.attention ? 'alert' : null },
        h('strong', null, item.reason === 'Suspended' ? 'Stopped manually' : item.reason), item.message && item.reason !== 'Suspended' && `: ${item.message}`));
    if (focused) [...this.element.querySelectorAll('button')].find((button) => button.textContent === focused)?.focus();
  }

  buttons(item, agent) {
    const running = item.status === 'RUNNING';
    return [
      running && agent === 'running' && action('Pause', () => send(this.id, 'paused')),
      running && agent === 'paused' && action('Resume', () => send(this.id, 'running')),
      item.status === 'STOPPED' ? action('Start', () => post(pathOf(this.id, '/start'), {}), { class: 'main' }) : action('Stop', () => post(pathOf(this.id, '/stop'))),
      action('Rename', () => this.rename(item)),
      h('a', { class: 'button', href: `#/new?from=${this.id}` }, 'Duplicate'),
      notifyButton(),
      action('Delete', async () => {
        if (!confirm(`Delete “${item.title}” and all its data?`)) return;
        await call('DELETE', pathOf(this.id));
        location.hash = '#/';
      }),
    ];
  }

  // rename opens a dialog, which Escape closes.
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
    show(main, h('p', { class: 'empty' }, 'Conversation not found. ', h('a', { href: '#/' }, 'All conversations')));
    return;
  }
  let agent = null;
  let connected = true;
  let announced = false;
  let glimpse = null; // the agent's state while the page is hidden and gets no events
  let told = null; // the word of the last state if the user must act next, '' if not, null at the start
  let archived = false; // set after the usage of the stopped session was read
  let pull = null; // the link of the pull request in the events
  const sound = soundWanted(session, signal);
  const head = new Head(id);
  const place = h('div', { class: 'place' });
  const link = (name, to, word) => h('a', { href: `#/c/${id}${to}`, 'aria-current': tab === name ? 'page' : null }, word);
  show(main, h('div', { class: 'conversation' }, head.element,
    h('nav', { class: 'tabs', 'aria-label': 'Sections' }, link('talk', '', 'Conversation'), link('changes', '/changes', 'Changes'), link('files', '/files', 'Files')),
    place));

  const parts = tab === 'talk' ? { timeline: new Timeline(), plan: new Plan(), answer: new Answer(id) } : null;
  if (parts) show(place, h('div', { class: 'talk' }, parts.timeline.element, parts.plan.element), parts.answer.element);
  const draw = () => {
    const running = item.status === 'RUNNING';
    const now = running ? glimpse ?? agent : null;
    head.draw({ ...item, pull_request: pull ?? item.pull_request }, now, connected);
    parts?.answer.fit(item, running ? agent : null, () => parts.timeline.asked());
    if (!running) announce();
    if (!running || now) tell(stateOf(item, now));
  };
  // drawSoon draws the page only one time after many events, so that a long history does not show
  // old questions.
  let drawing = null;
  const drawSoon = () => {
    drawing ??= Promise.resolve().then(() => {
      drawing = null;
      draw();
    });
  };
  // tell notifies the user when it becomes the user's turn while the page is hidden.
  const tell = async ({ turn, word }) => {
    const begins = turn && ![null, word].includes(told) && document.visibilityState === 'hidden';
    told = turn ? word : '';
    if (!begins) return;
    notifyTurn(item, word);
    if (await sound) chime();
  };
  // announce shows the first message of a session that has not started, or that failed before its
  // first event.
  const announce = async () => {
    if (!parts || announced) return;
    announced = true;
    try { parts.timeline.announce((await get(pathOf(id, '/request'), signal)).initial_user_msg); } catch { /* the title shows the beginning of the message */ }
  };
  const update = (now) => {
    if (!now) {
      show(main, h('p', { class: 'empty' }, 'The conversation was deleted. ', h('a', { href: '#/' }, 'All conversations')));
      return;
    }
    const before = item.status;
    item = now;
    draw();
    if (now.status === 'STOPPED' && !archived) head.cost.ask(id, signal);
    archived = now.status === 'STOPPED';
    if (tab === 'files' && before !== now.status) showFiles(place, item, signal);
  };
  draw();
  if (tab === 'changes') showChanges(place, item, signal);
  if (tab === 'files') showFiles(place, item, signal);

  const happened = async (event) => {
    parts?.timeline.take(event);
    parts?.plan.take(event);
    parts?.answer.take(event);
    if (event.extras?.pull_request) {
      pull = event.extras.pull_request;
      drawSoon();
    }
    if (event.observation !== 'agent_state_changed') return;
    const before = agent;
    agent = event.extras.agent_state;
    glimpse = null;
    drawSoon();
    if (item.status === 'RUNNING') head.cost.ask(id, signal);
    const ended = before === 'running' && waiting.has(agent);
    if (ended && Date.now() - new Date(`${event.timestamp}Z`) < recent && await sound) chime();
  };
  const reset = () => {
    agent = glimpse = pull = null;
    parts?.timeline.clear();
    parts?.plan.clear();
    parts?.answer.clear();
    draw();
  };
  const away = (state) => {
    glimpse = state;
    draw();
  };
  watch(id, update, signal);
  follow(id, { item: update, event: happened, preview: parts && ((now) => parts.timeline.preview(now)), reset, connected: (is) => { connected = is; draw(); }, away, signal })
    .catch((error) => { if (!signal.aborted) show(main, problem(error)); });
}
