// The settings of a user: every one that there is. Keys can be written and never read.
import { get, post } from './api.js';
import * as fields from './fields.js';
import { secretsStore } from './secrets.js';
import { toolServers } from './toolservers.js';
import { busy, h, notice, show } from './render.js';

// offered are names that settings may have; without them one can still type.
async function offered(path, signal) {
  try {
    return fields.suggestions(await get(path, signal));
  } catch {
    return fields.suggestions([]);
  }
}

function groupsOf(stored, lists) {
  const all = {};
  const field = (make) => (name, label, options = {}) => {
    all[name] = make(label, { name, value: stored[name], set: stored[`${name}_set`], ...options });
    return all[name];
  };
  const [text, number, key, check, maybe] = [fields.text, fields.number, fields.key, fields.check, fields.maybe].map(field);
  const groups = [
    fields.group('Model', lists.models,
      text('llm_model', 'Model', { list: lists.models, help: 'For example provider/model.' }),
      key('llm_api_key', 'Key of the model'),
      text('llm_base_url', 'Address of the model', { type: 'url', help: 'Where it is not the provider’s own.' }),
      number('max_budget_per_task', 'Budget for a turn, in US dollars', { min: 0, help: 'When its model has cost this much, the agent stops until your next message.' }),
      number('max_iterations', 'Most steps of a turn', { min: 1, step: 1 })),
    fields.group('Agent', lists.agents, lists.analyzers,
      text('agent', 'Agent', { list: lists.agents }),
      text('language', 'Language', { help: 'A language tag, such as en.' }),
      maybe('confirmation_mode', 'Ask before each action', { help: 'You approve or reject what the agent is about to do.' }),
      text('security_analyzer', 'Security analyzer', { list: lists.analyzers, help: 'With llm, only what the agent calls risky is asked about.' }),
      check('enable_default_condenser', 'Condense long conversations')),
    fields.group('Notifications and privacy',
      check('enable_sound_notifications', 'A sound when it is your turn'),
      check('enable_proactive_conversation_starters', 'Suggest conversations'),
      check('enable_solvability_analysis', 'Analyse whether tasks can be solved'),
      maybe('user_consents_to_analytics', 'Analytics')),
    fields.group('Who you are',
      text('git_user_name', 'Name in commits'),
      text('git_user_email', 'Email in commits', { type: 'email' }),
      text('email', 'Email', { type: 'email' }),
      maybe('email_verified', 'The email is verified')),
    fields.group('Sandbox',
      text('sandbox_base_container_image', 'Base image'),
      text('sandbox_runtime_container_image', 'Image', { help: 'It wins over the base image.' }),
      number('remote_runtime_resource_factor', 'Size', { min: 1, step: 1, help: '1, 2, 4 or 8 times the usual.' }),
      key('sandbox_api_key', 'Key of the sandbox'),
      key('search_api_key', 'Key of the search')),
  ];
  all.secrets_store = secretsStore(stored.secrets_store, stored.provider_tokens_set);
  all.mcp_config = toolServers(stored.mcp_config);
  groups.push(fields.group('Secrets', all.secrets_store), fields.group('Tool servers', all.mcp_config));
  return { all, groups };
}

export async function showSettings(main, context) {
  const { signal, session } = context;
  const [stored, models, agents, analyzers] = await Promise.all([
    session.settings_stored ? get('/api/settings', signal) : { enable_default_condenser: true, enable_proactive_conversation_starters: true, enable_solvability_analysis: true },
    offered('/api/options/models', signal), offered('/api/options/agents', signal), offered('/api/options/security-analyzers', signal),
  ]);
  if (signal.aborted) return;
  const { all, groups } = groupsOf(stored, { models, agents, analyzers });
  const before = new Map(Object.entries(all).map(([name, field]) => [name, JSON.stringify(field.read())]));
  const button = h('button', { type: 'submit', class: 'main' }, 'Store settings');
  const failed = h('p', { class: 'failed', role: 'alert' });
  const form = h('form', { class: 'settings' }, h('h1', null, 'Settings'),
    h('p', { class: 'help' }, 'They apply to conversations that start from now on.'), groups, failed, h('div', { class: 'sticky' }, button));
  form.addEventListener('submit', busy(button, async () => {
    failed.textContent = '';
    // Only what changed is sent: the rest may be somebody else’s to set.
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
    notice('Settings stored');
    await showSettings(main, context);
  }));
  show(main, form);
}
