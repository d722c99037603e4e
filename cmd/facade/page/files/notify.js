// Notifies the user of a hidden page that it is their turn.
import { action } from './render.js';

const possible = 'Notification' in window;

// notifyButton offers notifications, until the user has decided.
export const notifyButton = () => possible && Notification.permission === 'default' && action('Notify me', async (event) => {
  await Notification.requestPermission();
  event.target.remove();
});

// notifyTurn shows a notification, at most one per conversation.
export function notifyTurn(item, word) {
  if (!possible || Notification.permission !== 'granted' || document.visibilityState === 'visible') return;
  try {
    const note = new Notification(item.title, { body: word, tag: item.conversation_id });
    note.onclick = () => { focus(); note.close(); };
  } catch { /* some phones allow notifications only to installed applications */ }
}
