// Sign-in with the account of an organisation, and the choice among a person's settings.
import { get, post } from './api.js';
import { h, show, action, busy } from './render.js';

// signInAddress leads to the provider, and back to the current view after the sign-in.
const signInAddress = () => `/api/signin/oidc?then=${encodeURIComponent(`/${location.hash}`)}`;

// organisation returns a link to the sign-in at the provider; null if the facade has no provider.
export async function organisation() {
  const { oidc } = await get('/api/signin/options');
  return oidc && h('a', { class: 'button main', href: signInAddress(), title: oidc.issuer }, 'Sign in with your organisation');
}

const signOut = 'signed out at';
const lastSignOut = () => { try { return localStorage.getItem(signOut); } catch { return null; /* storage is off */ } };
const known = lastSignOut();

// announceSignOut tells all tabs of the browser that the user signs out. Call it before the cookie
// is revoked: a tab that gets status 401 must already know the reason.
export function announceSignOut() {
  try { localStorage.setItem(signOut, String(Date.now())); } catch { /* storage is off: then no tab renews its sign-in */ }
}

// whenSignedOutElsewhere sets a function to call when the user signs out in another tab.
export function whenSignedOutElsewhere(then) {
  addEventListener('storage', ({ key, newValue }) => { if (key === signOut && newValue) then(); });
}

const renewal = 'sign-in renewed at';

// renew repeats the sign-in of a person whose cookie is no longer valid. It reports whether the
// browser leaves the page. It does nothing after a sign-out in any tab. To avoid a loop, it renews
// a sign-in at most one time in a minute.
export function renew() {
  if (lastSignOut() !== known) return false;
  try {
    if (Date.now() - Number(sessionStorage.getItem(renewal)) < 60000) return false;
    sessionStorage.setItem(renewal, String(Date.now()));
  } catch { return false; /* storage is off */ }
  location.assign(signInAddress());
  return true;
}

// leaveProvider ends the session at the provider, if the provider has a URL for that.
export function leaveProvider({ end_session_url: address }) {
  if (/^https?:\/\//.test(address || '')) location.assign(address);
}

const nameOf = ({ namespace, name }) => `${namespace}/${name}`;
const choose = ({ namespace, name }) => post('/api/session/settings', { namespace, name });

// showChoice lets a person choose settings before the first view, or explains that there are none.
export function showChoice(main, session, then) {
  show(main, h('div', { class: 'card signin' },
    h('h1', null, session.settings.length ? 'Choose settings' : 'No settings'),
    h('p', null, session.settings.length
      ? 'Conversations, model and limits depend on this choice. You can change it at the top of the page.'
      : `You are signed in as ${session.person}, but there are no settings for you yet. Ask your administrator for access.`),
    session.settings.map((one) => action(nameOf(one), async () => then(await choose(one))))));
  main.querySelector('button')?.focus();
}

// settingsChoice is a list of the person's settings in the header; null if there is no choice.
export function settingsChoice(session, then) {
  if (!(session.settings?.length > 1)) return null;
  const current = nameOf({ namespace: session.namespace, name: session.user });
  const list = h('select', { 'aria-label': 'Settings' }, session.settings.map((one) => h('option', { value: nameOf(one) }, nameOf(one))));
  list.value = current;
  list.addEventListener('change', busy(list, async () => {
    const chosen = session.settings[list.selectedIndex];
    list.value = current; // until the server has accepted the choice
    then(await choose(chosen));
  }));
  return list;
}
