// Texts of agents and programs, made safe to read.

// visible replaces characters that can make a text look like a different text. These are control
// characters, invisible characters, and characters that change the writing direction. A carriage
// return becomes its own symbol.
export const visible = (text) => text.replace(/\r/g, '␍')
  .replace(/(?![\n\t])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu, '\ufffd');

// sequences matches terminal sequences: colours and cursor movements, titles and links, and short
// sequences.
const sequences = /\u001b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\|$)|[ -/]*[0-~])|\u009b[0-?]*[ -/]*[@-~]/g;

// unfinished matches the beginning of a terminal sequence at the end of a text.
export const unfinished = /\u001b(?:\[[0-?]*[ -/]*)?$/;

// output removes colours and other sequences for a terminal from the output of a program. A
// carriage return starts a new line, so that later output does not hide earlier output.
export const output = (text) => text.replace(sequences, '').replace(/\r\n?/g, '\n');
