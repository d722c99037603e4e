// A new conversation: a message and a repository, and behind "More" all else that one can be started with.
import { post, Wish } from './api.js';
import * as fields from './fields.js';
import { toolServers } from './toolservers.js';
import { busy, h, show } from './render.js';

const taskTypes = [['', 'Not set'], ['MERGE_CONFLICTS', 'Merge conflicts'], ['FAILING_CHECKS', 'Failing checks'], ['UNRESOLVED_COMMENTS', 'Unresolved comments'], ['OPEN_ISSUE', 'Open issue']];

// some is an object of what is set; undefined where nothing is.
function some(read) {
  const set = Object.entries(read).filter(([, value]) => value !== null);
  return set.length > 0 ? Object.fromEntries(set) : undefined;
}

function task() {
  const f = {
    task_type: fields.choice('Kind', taskTypes), git_provider: fields.provider('Git host'), repo: fields.text('Repository'),
    issue_number: fields.number('Number', { step: 1, min: 0 }), title: fields.text('Title'),
  };
  return { element: fields.group('Suggested task', ...Object.values(f)), read: () => some(Object.fromEntries(Object.entries(f).map(([name, field]) => [name, field.read()]))) };
}

function microagent() {
  const f = { repo: fields.text('Repository'), git_provider: fields.provider('Git host'), title: fields.text('Title') };
  return { element: fields.group('Write a microagent', ...Object.values(f)), read: () => some(Object.fromEntries(Object.entries(f).map(([name, field]) => [name, field.read()]))) };
}

function asDataURL(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

export async function showNewConversation(main, { session }) {
  const message = fields.area('What should be done?', { rows: 5, name: 'initial_user_msg' });
  const repository = fields.text('Repository', { name: 'repository', help: 'owner/name, or an address. Without one the workspace is empty.' });
  const branch = fields.text('Branch', { name: 'selected_branch' });
  const images = fields.area('Addresses of images, one a line', { rows: 2 });
  const files = h('input', { type: 'file', accept: 'image/*', multiple: true, 'aria-label': 'Images to send along' });
  const suggested = task();
  const agent = microagent();
  const plain = {
    git_provider: fields.provider('Git host', { name: 'git_provider' }),
    conversation_instructions: fields.area('Instructions for the whole conversation', { name: 'conversation_instructions' }),
    replay_json: fields.area('Events to replay, as JSON', { name: 'replay_json', help: 'It goes without a message and images.' }),
    conversation_id: fields.text('Id', { name: 'conversation_id', pattern: '[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?', help: 'Without one it is chosen at random.' }),
  };
  const tools = toolServers(null);
  const wish = new Wish();
  const button = h('button', { type: 'submit', class: 'main' }, 'Start');
  const failed = h('p', { class: 'failed', role: 'alert' });
  const form = h('form', { class: 'card' }, h('h1', null, 'New conversation'),
    !session.settings_stored && h('p', { class: 'hint' }, 'There are no settings yet: ', h('a', { href: '#/settings' }, 'name a model first'), '.'),
    message.element, h('div', { class: 'pair' }, repository.element, branch.element),
    h('details', null, h('summary', null, 'More'),
      Object.values(plain).map((field) => field.element),
      fields.group('Images', images, h('div', { class: 'field' }, files)), suggested.element, agent.element,
      fields.group('Tool servers, in place of those of the settings', tools)),
    failed, button);
  message.input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) form.requestSubmit();
  });
  form.addEventListener('submit', busy(button, async () => {
    failed.textContent = '';
    try {
      const pictures = [...fields.lines(images.read()), ...await Promise.all([...files.files].map(asDataURL))];
      const request = {
        ...some({ initial_user_msg: message.read(), repository: repository.read(), selected_branch: branch.read() }),
        ...some(Object.fromEntries(Object.entries(plain).map(([name, field]) => [name, field.read()]))),
        image_urls: pictures.length > 0 ? pictures : undefined,
        suggested_task: suggested.read(), create_microagent: agent.read(), mcp_config: tools.read() ?? undefined,
      };
      const answer = await post('/api/conversations', request, { 'Idempotency-Key': wish.keyOf(request) });
      wish.granted();
      location.hash = `#/c/${answer.conversation_id}`;
    } catch (error) {
      failed.textContent = error.message;
    }
  }));
  show(main, form);
  message.input.focus();
}
