// A Socket.IO client like those of OpenHands: it prints the events that it receives, and answers once.
// Arguments: address, conversation, key, and the ID of the last event that the client has received.
import { io } from "socket.io-client";

const [address, conversation, key, last] = process.argv.slice(2);
const socket = io(address, {
  transports: ["websocket"],
  query: { conversation_id: conversation, latest_event_id: last, session_api_key: key, providers_set: "" },
});
let answered = false;
socket.on("connect", () => console.log("connected"));
socket.on("connect_error", (error) => {
  console.log("refused: " + error.message);
  process.exit(1);
});
socket.on("oh_event", (event) => {
  console.log([event.id, event.source, event.action ?? event.observation, event.args?.content ?? event.extras?.agent_state ?? ""].join(" ").trim());
  const waits = event.extras?.agent_state === "awaiting_user_input";
  if (waits && answered) {
    socket.close();
  } else if (waits) {
    answered = true;
    socket.emit("oh_user_action", { action: "message", args: { content: "again", image_urls: [], file_urls: [], timestamp: new Date().toISOString() } });
  }
});
socket.on("disconnect", (reason) => console.log("disconnected: " + reason));
