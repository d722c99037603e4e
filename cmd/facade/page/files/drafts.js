// Unsent texts. They are kept across views, reloads and a new sign-in of the same user.
let owner = '';

// ownDrafts selects the drafts of a user.
export function ownDrafts({ user, namespace }) { owner = `${namespace}/${user}`; }

const keyOf = (name) => `draft ${owner} ${name}`;

export function readDraft(name) {
  try { return JSON.parse(sessionStorage.getItem(keyOf(name))); } catch { return null; }
}

// saveDraft keeps a value; an empty value removes the draft.
export function saveDraft(name, value) {
  try {
    if (value && Object.keys(value).length > 0) sessionStorage.setItem(keyOf(name), JSON.stringify(value));
    else sessionStorage.removeItem(keyOf(name));
  } catch { /* no room, or storage is off: the text stays on the page */ }
}

export function dropDrafts() {
  try { sessionStorage.clear(); } catch { /* storage is off */ }
}
