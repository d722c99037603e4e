// The changes of a conversation as a coloured diff.
import { downloadOf, get, pathOf, post } from './api.js';
import { diffTable } from './difflines.js';
import { action, h, linkTo, notice, problem, show } from './render.js';

const words = { M: 'Modified', A: 'Added', D: 'Deleted', R: 'Renamed', U: 'Untracked' };
const opened = 20; // number of files whose diff is loaded at once; other diffs load when the user opens them

export async function showChanges(place, item, signal) {
  const id = item.conversation_id;
  show(place, h('p', { class: 'empty' }, 'Loading…'));
  let changes;
  try {
    changes = await get(pathOf(id, '/git/changes'), signal);
  } catch (error) {
    if (!signal.aborted) show(place, problem(error, () => showChanges(place, item, signal)));
    return;
  }
  const reload = h('button', { type: 'button', onclick: () => showChanges(place, item, signal) }, 'Reload');
  if (changes.length === 0) {
    show(place, h('p', { class: 'empty' }, 'No changes.'), reload);
    return;
  }
  show(place, h('div', { class: 'headline' }, h('h2', null, `${changes.length} ${changes.length === 1 ? 'file' : 'files'} changed`),
    h('div', { class: 'buttons' }, h('a', { class: 'button', href: downloadOf(id, '/git/patch'), download: `${id}.patch` }, 'Download patch'), reload)),
    item.status === 'RUNNING' && item.selected_repository && publisher(item),
    changes.map((change, i) => fileOf(change, id, i < opened, signal)));
}

// publisher is a form that commits all changes, pushes them and opens a pull request.
function publisher(item) {
  const title = h('input', { type: 'text', value: item.title, maxlength: 200, 'aria-label': 'Title' });
  const body = h('textarea', { rows: 2, placeholder: 'Description', 'aria-label': 'Description' });
  const result = h('p', { class: 'help', role: 'status' });
  const publish = (path, done) => async () => {
    const { running, url } = await post(pathOf(item.conversation_id, path), { title: title.value.trim(), body: body.value });
    if (running) notice('This takes a while. The conversation will show the result.');
    else show(result, done, url && [': ', linkTo(url)]);
  };
  return h('form', { class: 'publish', onsubmit: (event) => event.preventDefault() }, title, body,
    h('div', { class: 'buttons' }, action('Push', publish('/git/push', 'Pushed')),
      action('Create pull request', publish('/git/pull-request', 'Pull request'), { class: 'main' })), result);
}

function fileOf({ status, path }, id, open, signal) {
  const body = h('div', { class: 'body' });
  let loaded = false;
  const load = async () => {
    if (loaded) return;
    loaded = true;
    try {
      const { original, modified } = await get(pathOf(id, `/git/diff?path=${encodeURIComponent(path)}`), signal);
      show(body, diffTable(original || '', modified || '', `Changes to ${path}`));
    } catch (error) {
      show(body, h('p', { class: 'help' }, error.status === 415 ? 'This file is binary or too large to show.' : error.message));
    }
  };
  const element = h('details', { class: 'change' },
    h('summary', null, h('span', { class: `change-${status}`, title: words[status] }, words[status] || status), ' ', h('code', null, path)), body);
  element.addEventListener('toggle', () => { if (element.open) load(); });
  element.open = open;
  return element;
}
