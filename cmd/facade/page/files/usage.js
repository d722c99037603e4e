// The costs of the user's model calls in the current month, and the spending limits.
import { get } from './api.js';
import { h } from './render.js';

// dollars shows an amount with two digits, or an amount below a cent with six digits.
function dollars(text) {
  const amount = Number(text);
  return amount > 0 && amount < 0.01 ? `$${amount.toFixed(6)}` : `$${amount.toFixed(2)}`;
}

function limitText({ scope, period, limit, used, resets }) {
  const of = `${dollars(limit)} per ${period} for ${scope === 'user' ? 'you' : 'your namespace'}`;
  return `Limit: ${of}${used === null ? '' : `, ${dollars(used)} used`}. Resets ${new Date(resets).toLocaleString()}.`;
}

function byModel(lines) {
  const sums = new Map();
  for (const { model, calls, cost } of lines) {
    const sum = sums.get(model) ?? { calls: 0, cost: 0 };
    sums.set(model, { calls: sum.calls + calls, cost: sum.cost + Number(cost) });
  }
  return [...sums].sort(([, a], [, b]) => b.cost - a.cost);
}

// usage returns a section for the settings, or nothing if the costs are not recorded or cannot be
// read. A failure to read the costs must not block the settings form.
export async function usage(signal) {
  let costs;
  try {
    costs = await get('/api/usage', signal);
  } catch {
    return null;
  }
  if (signal.aborted) return null;
  const models = byModel(costs.lines);
  const rows = models.map(([model, { calls, cost }]) => h('tr', null, h('td', null, model), h('td', null, String(calls)), h('td', null, dollars(cost))));
  return h('fieldset', { class: 'usage' }, h('legend', null, 'Usage'),
    h('p', null, `${dollars(costs.spent)} spent in ${costs.month} (UTC)`, Number(costs.reserved) > 0 && `, ${dollars(costs.reserved)} reserved`, '.'),
    costs.limits.map((limit) => h('p', { class: 'help' }, limitText(limit))),
    rows.length > 0 && h('table', null, h('thead', null, h('tr', null, ['Model', 'Calls', 'Cost'].map((name) => h('th', { scope: 'col' }, name)))), h('tbody', null, rows)));
}
