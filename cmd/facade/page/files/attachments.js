// Images that the user attaches to a message. They are chosen as files, or pasted into the text.
import { h, show } from './render.js';

function asDataURL(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`Cannot read ${file.name}`));
    reader.readAsDataURL(file);
  });
}

const isImage = (file) => file.type.startsWith('image/');

export class Attachments {
  // text is the field into which images are pasted. changed() is called after each change.
  constructor(text, changed = () => {}) {
    this.files = [];
    this.changed = changed;
    // Phones convert their photos to a type in this list.
    const input = h('input', { type: 'file', accept: 'image/png,image/jpeg,image/gif,image/webp', multiple: true, hidden: true, 'aria-label': 'Images' });
    input.addEventListener('change', () => {
      this.add([...input.files]);
      input.value = ''; // the same file can be chosen again
    });
    this.button = h('button', { type: 'button', onclick: () => input.click() }, 'Attach images');
    this.list = h('ul', { class: 'attached', 'aria-label': 'Attached images', hidden: true });
    this.element = h('div', { class: 'attachments' }, this.list, this.button, input);
    text.addEventListener('paste', (event) => {
      const images = [...event.clipboardData.files].filter(isImage);
      if (images.length === 0 || event.clipboardData.types.includes('text/plain')) return; // some programs add a picture to each copied text
      event.preventDefault();
      this.add(images);
    });
  }

  add(files) { this.set([...this.files, ...files]); }

  remove(files) { this.set(this.files.filter((file) => !files.includes(file))); }

  set(files) {
    this.files = files;
    this.list.hidden = files.length === 0;
    show(this.list, files.map((file) => h('li', null, file.name, h('button', { type: 'button', 'aria-label': `Remove ${file.name}`, onclick: () => this.remove([file]) }, '×'))));
    this.changed();
  }
}

export const dataURLs = (files) => Promise.all(files.map(asDataURL));
