// Follows a conversation: its state, and each event once, across reconnects.
import { get, pathOf, stream } from './api.js';
import { agentOf } from './attention.js';
import { pause } from './render.js';

const longest = 15000; // longest delay between two attempts, in milliseconds
const glance = 10000; // delay between two reads of the state while the page is hidden, in milliseconds

export const isHidden = () => document.visibilityState === 'hidden';

// The function until calls work(signal), and aborts it when the page reaches the given visibility
// state: 'hidden' or 'visible'.
async function until(state, work, signal) {
  const reached = new AbortController();
  const look = () => { if (document.visibilityState === state) reached.abort(); };
  document.addEventListener('visibilitychange', look);
  look(); // the visibility may have changed already
  try {
    await work(AbortSignal.any([signal, reached.signal]));
  } catch (error) {
    if (!reached.signal.aborted) throw error;
  } finally {
    document.removeEventListener('visibilitychange', look);
  }
}

// untilShown waits until the page is visible, but at most glance milliseconds.
export const untilShown = (signal) => until('visible', (either) => pause(glance, either), signal);

// streamWhileShown reads a stream until the page is hidden. All pages of a browser share few
// connections, so a hidden page must not hold one.
const streamWhileShown = (path, each, signal) => until('hidden', (either) => stream(path, each, either), signal);

let lookSooner = () => {};

// lookNow ends the current pause of follow(), because the conversation has probably changed.
export const lookNow = () => lookSooner();

function rest(milliseconds, signal) {
  const early = new AbortController();
  lookSooner = () => early.abort();
  return pause(milliseconds, AbortSignal.any([signal, early.signal]));
}

// follow watches a conversation, and reconnects after lost connections. It calls
// - item() when the conversation may have changed,
// - event() for each event, once and in order,
// - preview(), if given, with text that no event contains yet; a preview replaces the last preview,
// - connected() when the connection is lost or restored,
// - reset() when the session has lost its journal; the events of the new journal follow,
// - away() with the agent's state, instead of event(), while the page is hidden.
export async function follow(id, { item: update, event: happened, preview, reset, connected, away, signal }) {
  let last = -1; // the ID of the last event
  let at = ''; // the timestamp of the last event; if the event with this ID has another timestamp, the journal is new
  let failures = 0;
  let quiet = 0; // number of streams of a stopped conversation that brought no new event
  const each = (event, name) => {
    failures = quiet = 0;
    if (name === 'preview') {
      preview(event);
      return;
    }
    if (event.id <= last) return;
    last = event.id;
    at = event.timestamp;
    happened(event);
  };
  while (!signal.aborted) {
    try {
      const item = await get(pathOf(id), signal);
      update(item);
      if (!item) return;
      connected(true);
      if (isHidden()) {
        away(await agentOf(item, signal));
        await untilShown(signal);
        continue;
      }
      if (item.status === 'STARTING') {
        await pause(1000, signal);
        continue;
      }
      const stopped = item.status === 'STOPPED';
      if (!stopped && last >= 0) {
        const { events: [known] } = await get(pathOf(id, `/events?start_id=${last}&limit=1`), signal);
        if (known?.timestamp !== at) {
          last = -1;
          reset();
        }
      }
      // The last events of a session may reach the archive after the session has stopped.
      if (!stopped || quiet < 4) {
        try {
          await streamWhileShown(pathOf(id, `/events/stream?after=${last}&previews=${Boolean(preview)}`), each, signal);
        } finally {
          preview?.({});
        }
      }
      if (isHidden()) continue;
      quiet = stopped ? quiet + 1 : 0;
      await rest(stopped ? 3000 : 500, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 404) throw error;
      failures += 1;
      connected(false);
      await pause(Math.min(longest, 500 * 2 ** failures), signal);
    }
  }
}

// watch polls the state of the conversation while a stream of events is open, because the stream
// does not contain that state.
export async function watch(id, update, signal) {
  while (!signal.aborted) {
    await pause(5000, signal);
    if (signal.aborted || isHidden()) continue;
    try { update(await get(pathOf(id), signal)); } catch { /* the stream reports lost connections */ }
  }
}
