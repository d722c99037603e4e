// A new conversation: a message, a repository and, behind "More options", all other fields.
import { post, IdempotencyKey } from './api.js';
import * as fields from './fields.js';
import { toolServers } from './toolservers.js';
import { busy, h, show } from './render.js';

const taskTypes = [['', 'Not set'], ['MERGE_CONFLICTS', 'Merge conflicts'], ['FAILING_CHECKS', 'Failing checks'], ['UNRESOLVED_COMMENTS', 'Unresolved comments'], ['OPEN_ISSUE', 'Open issue']];

// some returns the fields that are set, or undefined if none is.
function some(read) {
  const set = Object.entries(read).filter(([, value]) => value !== null);
  return set.length > 0 ? Object.fromEntries(set) : undefined;
}

function task() {
  const f = {
    task_type: fields.choice('Task type', taskTypes), git_provider: fields.provider('Git provider'), repo: fields.text('Repository'),
    issue_number: fields.number('Issue number', { step: 1, min: 0 }), title: fields.text('Title'),
  };
  return { element: fields.group('Suggested task', ...Object.values(f)), read: () => some(Object.fromEntries(Object.entries(f).map(([name, field]) => [name, field.read()]))) };
}

function microagent() {
  const f = { repo: fields.text('Repository'), git_provider: fields.provider('Git provider'), title: fields.text('Title') };
  return { element: fields.group('Create a microagent', ...Object.values(f)), read: () => some(Object.fromEntries(Object.entries(f).map(([name, field]) => [name, field.read()]))) };
}

function asDataURL(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`Cannot read ${file.name}`));
    reader.readAsDataURL(file);
  });
}

export async function showNewConversation(main, { session }) {
  const message = fields.area('What should the agent do?', { rows: 5, name: 'initial_user_msg' });
  const repository = fields.text('Repository', { name: 'repository', help: 'owner/name or a URL. Leave empty to start without a repository.' });
  const branch = fields.text('Branch', { name: 'selected_branch' });
  const images = fields.area('Image URLs, one per line', { rows: 2 });
  const files = h('input', { type: 'file', accept: 'image/*', multiple: true, 'aria-label': 'Attach images' });
  const suggested = task();
  const agent = microagent();
  const plain = {
    git_provider: fields.provider('Git provider', { name: 'git_provider' }),
    conversation_instructions: fields.area('Instructions', { name: 'conversation_instructions' }),
    replay_json: fields.area('Events to replay (JSON)', { name: 'replay_json', help: 'Cannot be combined with a message or images.' }),
    conversation_id: fields.text('Conversation ID', { name: 'conversation_id', pattern: '[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?', help: 'Leave empty for a random ID.' }),
  };
  const tools = toolServers(null);
  const key = new IdempotencyKey();
  const button = h('button', { type: 'submit', class: 'main' }, 'Start');
  const failed = h('p', { class: 'failed', role: 'alert' });
  const form = h('form', { class: 'card' }, h('h1', null, 'New conversation'),
    !session.settings_stored && h('p', { class: 'hint' }, 'No settings yet: ', h('a', { href: '#/settings' }, 'choose a model first'), '.'),
    message.element, h('div', { class: 'pair' }, repository.element, branch.element),
    h('details', null, h('summary', null, 'More options'),
      Object.values(plain).map((field) => field.element),
      fields.group('Images', images, h('div', { class: 'field' }, files)), suggested.element, agent.element,
      fields.group('MCP servers (instead of those in your settings)', tools)),
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
      const answer = await post('/api/conversations', request, { 'Idempotency-Key': key.of(request) });
      key.reset();
      location.hash = `#/c/${answer.conversation_id}`;
    } catch (error) {
      failed.textContent = error.message;
    }
  }));
  show(main, form);
  message.input.focus();
}
