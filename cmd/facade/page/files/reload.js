// Recovers if a file of the page could not be loaded. During an update, the request for a file may
// reach a facade of another version, which does not have the file. This script then requests all
// files until they are in the browser's cache, and reloads the page. Pages of all versions load
// this same script.
const mostReloads = 10;
const mostTries = 8; // tries per file before a reload, in about five seconds
let failed = false;

addEventListener('error', ({ target }) => {
  if (target instanceof HTMLScriptElement || target.rel === 'stylesheet') failed = true;
}, true);

// mayReload counts the reloads of this tab, and tells whether another reload is allowed. Without
// storage it allows none, because uncounted reloads could go on forever.
function mayReload() {
  try {
    const reloads = Number(sessionStorage.getItem('reloads')) + 1;
    sessionStorage.setItem('reloads', reloads);
    return reloads <= mostReloads;
  } catch {
    return false;
  }
}

async function recover() {
  let missing = [...document.querySelectorAll('head [href], head [src]')].map((element) => element.href || element.src);
  for (let tries = 0; tries < mostTries && missing.length > 0; tries += 1) {
    await new Promise((then) => { setTimeout(then, 100 * 1.5 ** tries); });
    const found = await Promise.all(missing.map((url) => fetch(url).then(({ ok }) => ok, () => false)));
    missing = missing.filter((_, i) => !found[i]);
  }
  if (mayReload()) location.reload();
  else document.getElementById('main').textContent = 'The page could not be loaded. Reload it later.';
}

addEventListener('load', () => {
  if (failed) recover();
  else try { sessionStorage.removeItem('reloads'); } catch { /* storage is off */ }
});
