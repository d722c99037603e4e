// The whole content of a tool call: the command, the diff or the arguments, exactly as they will be
// executed.
import { diffTable } from './difflines.js';
import { h } from './render.js';
import { visible } from './text.js';

const words = { run: 'Run', edit: 'Edit', read: 'Read', write: 'Write', browse: 'Browse', browse_interactive: 'Browse', call_tool_mcp: 'Tool', run_ipython: 'Python' };
const questions = {
  run: 'Run this command?', edit: 'Make this edit?', read: 'Read this file?', write: 'Write this file?',
  browse: 'Open this page?', call_tool_mcp: 'Call this tool?', run_ipython: 'Run this code?',
};
const operations = { delete: ['Delete', 'Delete this file?'], move: ['Move', 'Move this file?'] };

export const isToolCall = (event) => event.action in words;
export const wordOf = ({ action, args }) => operations[args?.operation]?.[0] || words[action];
export const questionOf = ({ action, args }) => operations[args?.operation]?.[1] || questions[action];

const text = (value) => (typeof value === 'object' ? '' : String(value ?? ''));

// subjectOf describes a call in one text: the command, the file, the tool or the address.
export function subjectOf({ action, args = {} }) {
  switch (action) {
    case 'run': return text(args.command);
    case 'call_tool_mcp': return text(args.name);
    case 'browse': return text(args.url);
    case 'run_ipython': return text(args.code);
    default: return text(args.path);
  }
}

const block = (title, content) => [title && h('p', { class: 'help' }, title), h('pre', null, visible(content))];
const diff = (before, now, path) => diffTable(before, now, `Changes to ${visible(path)}`);

// shown returns the names of the arguments that it can show in a readable form, such as a diff, and
// the elements that show them.
function shown({ action, args }) {
  const path = text(args.path);
  if (action === 'write') return [['path', 'content'], block('The whole file:', text(args.content))];
  if (action !== 'edit') return [[], []];
  const files = Array.isArray(args.changes) ? args.changes : null;
  switch (args.operation in operations ? '' : args.command) {
    case 'create': return [['path', 'command', 'file_text', 'changes'], block('The whole file:', text(args.file_text))];
    case 'str_replace': return [['path', 'command', 'old_str', 'new_str', 'changes'], [diff(text(args.old_str), text(args.new_str), path)]];
    case 'insert':
      return [['path', 'command', 'insert_line', 'new_str', 'changes'], block(`Inserted after line ${args.insert_line ?? '?'}:`, text(args.new_str))];
    default:
      if (!files) return [['path'], []];
      return [['path', 'changes'], files.flatMap(({ path: file, old_text: before, new_text: now }) => (
        typeof before === 'string' ? [h('p', { class: 'help' }, visible(text(file))), diff(before, text(now), text(file))]
          : block(`New file ${visible(text(file))}:`, text(now))))];
  }
}

const hidden = ['thought', 'security_risk', 'confirmation_state', 'operation'];
const subjects = { run: ['command'], call_tool_mcp: ['name'], browse: ['url'], run_ipython: ['code'], read: ['path'] };

// detailsOf returns elements for all parts of a call that subjectOf does not show. Arguments that
// shown() does not cover appear as JSON, so that no argument is missing.
export function detailsOf(event) {
  const args = event.args || {};
  const [names, parts] = shown({ ...event, args });
  const known = new Set([...hidden, ...(subjects[event.action] || []), ...names]);
  const isShown = (name, value) => known.has(name) && (typeof value !== 'object' || name === 'changes');
  const rest = Object.entries(args).filter(([name, value]) => !isShown(name, value) && value !== null && value !== '');
  if (event.action === 'call_tool_mcp') return block('Arguments:', JSON.stringify(args.arguments ?? {}, null, 2));
  return [...parts, rest.length > 0 && block('Arguments:', JSON.stringify(Object.fromEntries(rest), null, 2))];
}
