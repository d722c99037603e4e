// Shows a view. The part of the URL after the # is the name of the view.
import { currentSession, post, useSettings, whenSignedOut } from './api.js';
import { dropDrafts, ownDrafts } from './drafts.js';
import { h, show, action, problem } from './render.js';
import { showSignIn, signInByLink } from './signin.js';
import { announceSignOut, leaveProvider, renew, settingsChoice, showChoice, whenSignedOutElsewhere } from './people.js';
import { showConversations } from './conversations.js';
import { showNewConversation } from './newconversation.js';
import { showConversation } from './conversation.js';
import { showSettings } from './settings.js';

const top = document.getElementById('top');
const main = document.getElementById('main');

const views = [
  [/^#\/new(?:\?from=([a-z0-9-]+))?$/, showNewConversation, 'New conversation'],
  [/^#\/settings$/, showSettings, 'Settings'],
  [/^#\/c\/([^/]+)(?:\/(changes|files))?$/, showConversation, 'Conversation'],
  [/^(?:#\/?(?:\?(.*))?)?$/, showConversations, 'Conversations'],
];

let session = { user: null };
let leave = new AbortController();

function showTop() {
  const here = (location.hash || '#/').split('?')[0];
  const link = (to, label) => h('a', { href: to, 'aria-current': here === to ? 'page' : null }, label);
  show(top,
    h('a', { class: 'brand', href: '#/' }, h('img', { src: new URL('./icon.svg', import.meta.url), alt: '', width: 24, height: 24 }), 'Parley'),
    session.user && h('nav', { 'aria-label': 'Pages' }, link('#/', 'Conversations'), link('#/new', 'New'), link('#/settings', 'Settings')),
    (session.user || session.person) && h('div', { class: 'who' },
      h('span', { title: `Namespace: ${session.namespace}` }, session.person || session.user),
      session.user && settingsChoice(session, use),
      action('Sign out', async () => {
        announceSignOut();
        session = await post('/api/signout');
        forget();
        showView();
        leaveProvider(session);
      })));
}

// forget removes the data of this tab, because another person may use this browser next.
function forget() {
  useSettings('');
  dropDrafts();
}

// enter sets the session of this tab. The tab of a person keeps its settings, even if another tab
// switches to other settings. A session key belongs to one UserSettings.
function enter(answer) {
  session = answer;
  if (session.user) useSettings(session.person ? `${session.namespace}/${session.user}` : '');
}

// use switches to other settings, and shows their conversations.
function use(answer) {
  enter(answer);
  if ((location.hash || '#/') === '#/') showView();
  else location.hash = '#/';
}

// showView replaces the current view and aborts its requests.
async function showView() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  showTop();
  if (!session.user && session.person) {
    document.title = 'Choose settings – Parley';
    showChoice(main, session, (answer) => { enter(answer); showView(); });
    return;
  }
  if (!session.user) {
    document.title = 'Sign in – Parley';
    const reason = session.spent ? 'This link was already used or has expired. Sign in with your key, or run kubectl parley open for a new link.' : '';
    showSignIn(main, (answer) => { enter(answer); showView(); }, reason);
    return;
  }
  ownDrafts(session);
  const [pattern, view, title] = views.find(([form]) => form.test(location.hash)) || views.at(-1);
  document.title = `${title} – Parley`;
  show(main, h('p', { class: 'empty' }, 'Loading…'));
  try {
    await view(main, { signal, session, params: pattern.exec(location.hash)?.slice(1) || [] });
  } catch (error) {
    if (!signal.aborted) show(main, problem(error, showView));
  }
}

whenSignedOut(() => {
  if (!session.user && !session.person) return;
  if (session.person && renew()) return;
  session = { user: null };
  showView();
});

whenSignedOutElsewhere(() => {
  forget();
  if (!session.user && !session.person) return;
  session = { user: null };
  showView();
});

addEventListener('hashchange', () => {
  if (location.hash === '#main') return;
  showView();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});

async function begin() {
  try {
    enter((await signInByLink(main)) || (await currentSession()));
    showView();
  } catch (error) {
    show(main, problem(error, begin));
  }
}
begin();
