// All settings of a user. Keys are write-only.
import { get, post } from './api.js';
import * as fields from './fields.js';
import { secretsStore } from './secrets.js';
import { toolServers } from './toolservers.js';
import { usage } from './usage.js';
import { busy, h, notice, show } from './render.js';

const efforts = [['', 'Model default'], ['none', 'None'], ['minimal', 'Minimal'], ['low', 'Low'], ['medium', 'Medium'], ['high', 'High'], ['xhigh', 'Very high']];

function groupsOf(stored, lists) {
  const all = {};
  const inherited = (name) => (stored.inherited ?? []).includes(name);
  const field = (make) => (name, label, { help, ...options } = {}) => {
    const note = inherited(name) ? `Inherited from your team. ${help ?? ''}` : help;
    all[name] = make(label, { name, value: stored[name], set: stored[`${name}_set`], help: note, ...options });
    return all[name];
  };
  const mixed = (name) => inherited(name) && h('p', { class: 'help' }, 'Some of these entries are inherited from your team. The inherited entries cannot be removed here.');
  const choice = field((label, { options, ...more }) => fields.choice(label, options, more));
  const [text, number, key, check, maybe] = [fields.text, fields.number, fields.key, fields.check, fields.maybe].map(field);
  const groups = [
    fields.group('Model', lists.models,
      text('llm_model', 'Model', { list: lists.models, help: 'As provider/model, such as openai/gpt-5.' }),
      key('llm_api_key', 'API key'),
      text('llm_base_url', 'Base URL', { type: 'url', help: 'Leave empty for the provider’s default.' }),
      choice('llm_reasoning_effort', 'Reasoning effort', { options: efforts, help: 'How much the model reasons before it answers.' }),
      number('llm_temperature', 'Temperature', { min: 0, max: 2, help: 'Leave empty for the model’s default. Some models accept only their default.' }),
      number('max_budget_per_task', 'Budget per turn (US dollars)', { min: 0, help: 'If a turn reaches this cost, the agent stops and waits for your next message.' }),
      number('max_iterations', 'Max iterations per turn', { min: 1, step: 1 })),
    fields.group('Agent', lists.agents, lists.analyzers,
      text('agent', 'Agent', { list: lists.agents }),
      text('language', 'Language', { help: 'A language tag, such as en.' }),
      maybe('confirmation_mode', 'Confirmation mode', { help: 'You approve or reject each action of the agent.' }),
      text('security_analyzer', 'Security analyzer', { list: lists.analyzers, help: 'Used in confirmation mode. If set to llm, only high-risk and unrated actions need approval. If not set, every action needs approval.' }),
      check('enable_default_condenser', 'Condense long conversations')),
    fields.group('Notifications and privacy',
      check('enable_sound_notifications', 'Sound notifications'),
      check('enable_proactive_conversation_starters', 'Suggest tasks', { help: 'Used by OpenHands clients only. This page does not show suggested tasks.' }),
      check('enable_solvability_analysis', 'Check suggested tasks', { help: 'For suggested tasks, the agent first says whether it can solve the task.' }),
      maybe('user_consents_to_analytics', 'Allow analytics')),
    fields.group('Profile',
      text('git_user_name', 'Git user name'),
      text('git_user_email', 'Git user email', { type: 'email' }),
      text('email', 'Email', { type: 'email' }),
      maybe('email_verified', 'Email is verified', { help: 'If verified, this email is the default Git user email.' })),
    fields.group('Sandbox',
      text('sandbox_base_container_image', 'Base image'),
      text('sandbox_runtime_container_image', 'Runtime image', { help: 'Overrides the base image.' }),
      number('remote_runtime_resource_factor', 'Resource factor', { min: 1, step: 1, help: '1, 2, 4 or 8 times the default resources.' }),
      key('sandbox_api_key', 'Sandbox API key', { help: 'Only used by custom runtime images.' }),
      key('search_api_key', 'Search API key', { help: 'For the agent’s web search.' })),
  ];
  all.secrets_store = secretsStore(stored.secrets_store, stored.provider_tokens_set);
  all.mcp_config = toolServers(stored.mcp_config);
  groups.push(fields.group('Secrets', mixed('secrets_store'), all.secrets_store,
    check('expose_git_token_to_agent', 'Give the agent the git token', { help: 'Without the token, the agent can still use git and open pull requests.' }),
    check('expose_secrets_to_model', 'Let the model read secrets', { help: 'If this is off, the model sees *** instead of secrets.' })), fields.group('MCP servers', mixed('mcp_config'), all.mcp_config));
  return { all, groups };
}

export async function showSettings(main, context) {
  const { signal, session } = context;
  const offered = (name) => fields.offered(`/api/options/${name}`, signal);
  const lists = { models: fields.offered(), agents: offered('agents'), analyzers: offered('security-analyzers') };
  const stored = session.settings_stored ? await get('/api/settings', signal) : { enable_default_condenser: true, enable_proactive_conversation_starters: true, enable_solvability_analysis: true };
  if (signal.aborted) return;
  const { all, groups } = groupsOf(stored, lists);
  fields.offerModelsOf(all.agent, lists.models, signal);
  const before = new Map(Object.entries(all).map(([name, field]) => [name, JSON.stringify(field.read())]));
  const button = h('button', { type: 'submit', class: 'main' }, 'Save');
  const failed = h('p', { class: 'failed', role: 'alert' });
  const form = h('form', { class: 'settings' }, h('h1', null, 'Settings'),
    h('p', { class: 'help' }, 'A changed model applies from the next message of each conversation. Other changes apply when a conversation next starts.'), groups, failed, h('div', { class: 'sticky' }, button));
  form.addEventListener('submit', busy(button, async () => {
    failed.textContent = '';
    // Send only changed fields, because another field manager, such as GitOps, may own the other
    // fields.
    const changed = {};
    for (const [name, field] of Object.entries(all)) {
      const value = field.read();
      if (value !== undefined && JSON.stringify(value) !== before.get(name)) changed[name] = value;
    }
    try {
      await post('/api/settings', changed);
    } catch (error) {
      failed.textContent = error.message;
      failed.scrollIntoView({ block: 'center' });
      return;
    }
    session.settings_stored = true;
    notice('Settings saved');
    await showSettings(main, context);
  }));
  show(main, form);
  usage(signal).then((section) => section && form.querySelector('.sticky')?.before(section));
}
