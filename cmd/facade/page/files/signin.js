// Sign-in with an organisation, with the session key, or with a link that works only one time.
import { post } from './api.js';
import { organisation } from './people.js';
import { h, show, busy } from './render.js';

export function showSignIn(main, then, reason = '') {
  const key = h('input', { id: 'key', type: 'password', autocomplete: 'current-password', required: true, 'aria-describedby': 'key-help' });
  const failed = h('p', { class: 'failed', role: 'alert' }, reason);
  const button = h('button', { type: 'submit', class: 'main' }, 'Sign in');
  const other = h('div', { class: 'other', hidden: true });
  const form = h('form', { class: 'card signin' },
    h('h1', null, 'Sign in'), other,
    h('label', { for: 'key' }, 'Session key'), key,
    h('p', { id: 'key-help', class: 'help' }, 'Print your key with kubectl parley key NAME, where NAME is the name of your UserSettings. Or ask your administrator.'),
    failed, button);
  form.addEventListener('submit', busy(button, async () => {
    failed.textContent = '';
    try {
      then(await post('/api/signin', { key: key.value.trim() }));
    } catch (error) {
      failed.textContent = error.status === 401 ? 'Wrong key.' : error.message;
      key.select();
    }
  }));
  show(main, form);
  key.focus();
  organisation().then((link) => {
    if (!link) return;
    show(other, link, h('p', { class: 'help' }, 'Or use a session key:'));
    other.hidden = false;
    button.classList.remove('main');
  }, () => {}); // the key still works
}

// signInByLink takes the code from /signin#code=… and removes it from the address at once. It
// always asks the user to confirm, because another person may have sent the link. A link can also
// name the conversation to open after the sign-in.
export async function signInByLink(main) {
  if (location.pathname !== '/signin') return null;
  const link = new URLSearchParams(location.hash.slice(1));
  const [code, then] = [link.get('code'), link.get('then')];
  history.replaceState(null, '', /^[a-z0-9-]+$/.test(then || '') ? `/#/c/${then}` : '/');
  if (!code) return null;
  try {
    const owner = await ownerOf(code);
    return await confirmSignIn(main, owner) ? await post('/api/signin', { code, replace: true }) : null;
  } catch (error) {
    if (error.status === 401) return { user: null, spent: true };
    throw error;
  }
}

// ownerOf returns the user of a link. It requests a sign-in without a confirmation: the server
// refuses it, and names the user in the refusal.
async function ownerOf(code) {
  try {
    return await post('/api/signin', { code });
  } catch (error) {
    if (error.status !== 409) throw error;
    return error.body;
  }
}

function confirmSignIn(main, { user, namespace }) {
  return new Promise((answer) => {
    show(main, h('div', { class: 'card signin', role: 'alertdialog', 'aria-labelledby': 'instead', 'aria-describedby': 'account' },
      h('h1', { id: 'instead' }, `Sign in as ${user}?`),
      h('p', { id: 'account' }, `This link signs you in as ${user} in ${namespace}. After the sign-in, everything that you save goes to that account. Continue only if this is you.`),
      h('button', { type: 'button', onclick: () => answer(false) }, 'Cancel'),
      h('button', { type: 'button', class: 'main', onclick: () => answer(true) }, `Sign in as ${user}`)));
    main.querySelector('button').focus();
  });
}
