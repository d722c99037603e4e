// A sound at the end of a turn.
let context = null;

// allowSound must be called during a user action, because browsers allow no sound before the first
// user action.
export function allowSound() {
  context ??= new AudioContext();
  context.resume();
}

export function chime() {
  if (context?.state !== 'running') return;
  [660, 880].forEach((frequency, i) => {
    const tone = context.createOscillator();
    const volume = context.createGain();
    const start = context.currentTime + i * 0.15;
    tone.frequency.value = frequency;
    volume.gain.setValueAtTime(0.08, start);
    volume.gain.exponentialRampToValueAtTime(0.001, start + 0.3);
    tone.connect(volume).connect(context.destination);
    tone.start(start);
    tone.stop(start + 0.3);
  });
}
