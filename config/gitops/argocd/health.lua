-- Health of a Conversation and of UserSettings for Argo CD, which does not read their conditions by itself.
-- The outcome of the last turn counts too: the session runs, but a user has to act.
-- A suspended session is Healthy, because its manifest requests that. The health Suspended would block later sync waves.
local health = {status = "Progressing", message = "The operator has not processed this object yet"}
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
local ready, stalled, reconciling
for _, condition in ipairs(status.conditions) do
  if condition.type == "Ready" then ready = condition end
  if condition.type == "Stalled" and condition.status == "True" then stalled = condition end
  if condition.type == "Reconciling" and condition.status == "True" then reconciling = condition end
end
local told = stalled or reconciling or ready
if told ~= nil then
  health.message = told.reason .. ": " .. (told.message or "")
end
if stalled ~= nil then
  health.status = "Degraded"
elseif reconciling == nil and ready ~= nil and ready.status == "True" then
  health.status = "Healthy"
  local turn = status.turn
  if turn ~= nil and status.reason ~= "Suspended" then
    health.status = turn.state == "Failed" and "Degraded" or "Suspended"
    health.message = turn.reason .. ": " .. (turn.message or "")
  end
end
return health
