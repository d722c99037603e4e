// Following a conversation: what it is, and each event once, whatever breaks in between.
import { get, pathOf, stream } from './api.js';
import { pause } from './render.js';

const longest = 15000;

// follow tells of the item whenever it may have changed, of each event once and in order, and of whether it is connected. It comes
// back with the last event that it has. A session that lost what happened may have begun anew meanwhile: that is told, and then all
// that happened since.
export async function follow(id, { item: told, event: happened, anew, connected, signal }) {
  let last = -1;
  let at = ''; // when that one happened, by which it is known
  let failures = 0;
  let quiet = 0; // how often a stopped conversation had nothing more
  const each = (event) => {
    failures = quiet = 0;
    if (event.id <= last) return;
    last = event.id;
    at = event.timestamp;
    happened(event);
  };
  while (!signal.aborted) {
    try {
      const item = await get(pathOf(id), signal);
      told(item);
      if (!item) return;
      connected(true);
      if (item.status === 'STARTING') {
        await pause(1000, signal);
        continue;
      }
      const stopped = item.status === 'STOPPED';
      if (!stopped && last >= 0) {
        const { events: [known] } = await get(pathOf(id, `/events?start_id=${last}&limit=1`), signal);
        if (known?.timestamp !== at) {
          last = -1;
          anew();
        }
      }
      // What a session leaves may arrive a moment after it stopped.
      if (!stopped || quiet < 4) await stream(pathOf(id, `/events/stream?after=${last}`), each, signal);
      quiet = stopped ? quiet + 1 : 0;
      await pause(stopped ? 3000 : 500, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401 || error.status === 404) throw error;
      failures += 1;
      connected(false);
      await pause(Math.min(longest, 500 * 2 ** failures), signal);
    }
  }
}

// watch asks for the item now and then while a stream is open, which says nothing of it.
export async function watch(id, told, signal) {
  while (!signal.aborted) {
    await pause(5000, signal);
    if (signal.aborted || document.visibilityState !== 'visible') continue;
    try { told(await get(pathOf(id), signal)); } catch { /* the stream says whether it is connected */ }
  }
}
