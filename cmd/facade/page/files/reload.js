// Recovers if a file of the page is missing. During an update, a facade of another version may answer
// the request for a file. The page then fetches its files into the browser's cache, and reloads.
// Pages of all versions load this file.
const mostReloads = 10;
const mostTries = 8; // of each file before a reload, in about five seconds
let failed = false;

addEventListener('error', ({ target }) => {
  if (target instanceof HTMLScriptElement || target.rel === 'stylesheet') failed = true;
}, true);

// mayReload counts the reloads in this tab. Without storage, reloads could not end.
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
