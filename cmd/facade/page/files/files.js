// The files of a running conversation: view, upload, download.
import { downloadOf, get, pathOf, upload } from './api.js';
import { action, h, notice, problem, show } from './render.js';

export async function showFiles(place, item, signal) {
  const id = item.conversation_id;
  if (item.status !== 'RUNNING') {
    show(place, h('p', { class: 'empty' }, 'Files are available while the conversation is running. Start the conversation to see its files. Its changes are kept.'));
    return;
  }
  const text = h('div', { class: 'file', 'aria-live': 'polite' }, h('p', { class: 'empty' }, 'Select a file.'));
  const tree = h('div', { class: 'tree' });
  const picker = h('input', { type: 'file', multiple: true, hidden: true });
  picker.addEventListener('change', async () => {
    try {
      const done = await upload(pathOf(id, '/upload-files'), picker.files);
      notice(`Uploaded files: ${done.uploaded_files.length}`);
      done.skipped_files.forEach((file) => notice(`${file.name}: ${file.reason}`, 'error'));
      await folder(tree, id, '', text, signal);
    } catch (error) {
      notice(error.message, 'error');
    }
  });
  show(place,
    h('div', { class: 'headline' }, h('h2', null, 'Files'), h('div', { class: 'buttons' },
      action('Reload', () => folder(tree, id, '', text, signal)), action('Upload', () => picker.click()), picker,
      h('a', { class: 'button', href: downloadOf(id, '/zip-directory'), download: 'workspace.zip' }, 'Download all'))),
    h('div', { class: 'browser' }, tree, text));
  await folder(tree, id, '', text, signal);
}

async function folder(place, id, path, text, signal) {
  let names;
  try {
    names = await get(pathOf(id, `/list-files?path=${encodeURIComponent(path)}`), signal);
  } catch (error) {
    if (!signal.aborted) show(place, problem(error, () => folder(place, id, path, text, signal)));
    return;
  }
  show(place, names.length === 0 && h('p', { class: 'help' }, 'Empty'), h('ul', null, names.map((name) => {
    const whole = path ? `${path.replace(/\/$/, '')}/${name}` : name;
    return h('li', null, name.endsWith('/') ? nested(id, name, whole, text, signal) : action(name, () => open(text, id, whole, signal), { class: 'link' }));
  })));
}

function nested(id, name, path, text, signal) {
  const inside = h('div');
  const element = h('details', null, h('summary', null, name), inside);
  element.addEventListener('toggle', () => { if (element.open) folder(inside, id, path.replace(/\/$/, ''), text, signal); });
  return element;
}

async function open(place, id, path, signal) {
  try {
    const { code } = await get(pathOf(id, `/select-file?file=${encodeURIComponent(path)}`), signal);
    show(place, h('h3', null, path), h('pre', { tabindex: 0, 'aria-label': path }, code));
  } catch (error) {
    if (!signal.aborted) show(place, h('h3', null, path), h('p', { class: 'help' }, error.status === 415 ? 'This is not a text file.' : error.message));
  }
}
