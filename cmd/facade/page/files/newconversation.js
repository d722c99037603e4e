// A new conversation: a message, a repository and, behind "More options", all other fields.
import { get, pathOf, post, IdempotencyKey } from './api.js';
import { Attachments, dataURLs } from './attachments.js';
import { readDraft, saveDraft } from './drafts.js';
import * as fields from './fields.js';
import { toolServers } from './toolservers.js';
import { busy, h, show } from './render.js';

const taskTypes = [['', 'Not set'], ['MERGE_CONFLICTS', 'Merge conflicts'], ['FAILING_CHECKS', 'Failing checks'], ['UNRESOLVED_COMMENTS', 'Unresolved comments'], ['OPEN_ISSUE', 'Open issue']];

// The function some returns the fields that are not null, or undefined if all are null.
function some(read) {
  const set = Object.entries(read).filter(([, value]) => value !== null);
  return set.length > 0 ? Object.fromEntries(set) : undefined;
}

// grouped is a group of fields that are sent as one object.
function grouped(name, title, make) {
  const f = make((field) => `${name}.${field}`);
  return { element: fields.group(title, ...Object.values(f)), read: () => some(Object.fromEntries(Object.entries(f).map(([field, { read }]) => [field, read()]))) };
}

const task = () => grouped('suggested_task', 'Suggested task', (name) => ({
  task_type: fields.choice('Task type', taskTypes, { name: name('task_type') }),
  git_provider: fields.provider('Git provider', { name: name('git_provider') }),
  repo: fields.text('Repository', { name: name('repo') }),
  issue_number: fields.number('Issue number', { step: 1, min: 0, name: name('issue_number') }),
  title: fields.text('Title', { name: name('title') }),
}));

const microagent = () => grouped('create_microagent', 'Create a microagent', (name) => ({
  repo: fields.text('Repository', { name: name('repo') }),
  git_provider: fields.provider('Git provider', { name: name('git_provider') }),
  title: fields.text('Title', { name: name('title') }),
}));

// isEmpty tells whether a request has no repository and nothing for the agent to do.
const isEmpty = (request) => Object.entries(request).every(([name, value]) => value === undefined || ['conversation_id', 'selected_branch', 'git_provider', 'mcp_config', 'llm_model', 'agent'].includes(name));

// valuesOf returns the values of a request. Their keys are the names of the form fields.
function valuesOf({ suggested_task: suggested, create_microagent: agent, image_urls: images, ...plain }) {
  const under = (name, values) => Object.fromEntries(Object.entries(values || {}).map(([field, value]) => [`${name}.${field}`, value]));
  return { ...plain, ...under('suggested_task', suggested), ...under('create_microagent', agent), image_urls: images?.join('\n') };
}

// keepDraft fills the form with its draft or, without a draft, with the given values. It stores the
// user's input as the draft.
function keepDraft(form, draft, given) {
  const inputs = [...form.querySelectorAll('[name]')];
  const values = readDraft(draft) || given;
  inputs.forEach((input) => { input.value = values[input.name] ?? ''; });
  form.querySelector('details').open = inputs.some((input) => input.value && input.closest('details'));
  form.addEventListener('input', () => {
    saveDraft(draft, Object.fromEntries(inputs.filter((input) => input.value).map((input) => [input.name, input.value])));
  });
}

// showNewConversation shows the form. The argument from may be the ID of a conversation: then the
// form is filled with a copy of its request.
export async function showNewConversation(main, { session, signal, params: [from] }) {
  const draft = `new ${from || ''}`;
  const { not_copied: missing = [], ...copy } = from ? await get(pathOf(from, '/request'), signal) : {};
  const message = fields.area('What should the agent do?', { rows: 5, name: 'initial_user_msg' });
  const repository = fields.text('Repository', { name: 'repository', help: 'owner/name or a URL. Leave empty to start without a repository.' });
  const branch = fields.text('Branch', { name: 'selected_branch' });
  const images = fields.area('Image URLs, one per line', { rows: 2, name: 'image_urls' });
  const attached = new Attachments(message.input);
  const suggested = task();
  const written = microagent();
  const lists = { models: fields.offered(), agents: fields.offered('/api/options/agents', signal) };
  const chosen = {
    llm_model: fields.text('Model', { name: 'llm_model', list: lists.models, placeholder: 'From settings' }),
    agent: fields.text('Agent', { name: 'agent', list: lists.agents, placeholder: 'From settings' }),
  };
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
    missing.length > 0 && h('p', { class: 'hint' }, `Not copied: ${missing.join(', ')}. Add them again if you need them.`),
    message.element, attached.element, h('div', { class: 'pair' }, repository.element, branch.element),
    h('div', { class: 'pair' }, chosen.llm_model.element, chosen.agent.element), lists.models, lists.agents,
    h('details', null, h('summary', null, 'More options'),
      Object.values(plain).map((field) => field.element), images.element, suggested.element, written.element,
      fields.group('MCP servers (instead of those in your settings)', tools)),
    failed, button);
  message.input.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) form.requestSubmit();
  });
  form.addEventListener('submit', busy(button, async () => {
    failed.textContent = '';
    try {
      const pictures = [...fields.lines(images.read()), ...await dataURLs(attached.files)];
      const request = {
        ...some({ initial_user_msg: message.read(), repository: repository.read(), selected_branch: branch.read() }),
        ...some(Object.fromEntries(Object.entries({ ...chosen, ...plain }).map(([name, field]) => [name, field.read()]))),
        image_urls: pictures.length > 0 ? pictures : undefined,
        suggested_task: suggested.read(), create_microagent: written.read(), mcp_config: tools.read() ?? undefined,
      };
      if (isEmpty(request)) {
        failed.textContent = 'Write a message: what should the agent do?';
        message.input.focus();
        return;
      }
      const answer = await post('/api/conversations', request, { 'Idempotency-Key': key.of(request) });
      key.reset();
      saveDraft(draft, null);
      location.hash = `#/c/${answer.conversation_id}`;
    } catch (error) {
      failed.textContent = error.message;
    }
  }));
  keepDraft(form, draft, valuesOf(copy));
  fields.offerModelsOf(chosen.agent, lists.models, signal);
  show(main, form);
  message.input.focus();
}
