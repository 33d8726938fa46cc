-- SPDX-License-Identifier: GPL-3.0-or-later
-- Prints marker lines for the meta_data.json given as argument; one fact is one line (line breaks inside as \n).
package.cpath = "/usr/lib/lua/?.so"
local cjson = require "cjson"

local function line(value)
    if type(value) == "table" then value = cjson.encode(value) end
    local text = tostring(value):gsub("%s+$", "")
    return (text:gsub("\\", "\\\\"):gsub("\n", "\\n"):gsub("\r", "\\r"))
end

local function each(map, print_one)
    local names = {}
    for name in pairs(type(map) == "table" and map or {}) do names[#names + 1] = name end
    table.sort(names)
    for _, name in ipairs(names) do print_one(line(name), line(map[name])) end
end

local file = assert(io.open(arg[1]))
local data = cjson.decode(file:read("a"))
print("GUEST uuid=" .. line(data.uuid or ""))
print("GUEST hostname=" .. line(data.hostname or data.name or ""))
each(data.public_keys, function(_, key) print("GUEST key=" .. key) end)
each(data.meta, function(name, value) print("GUEST meta " .. name .. "=" .. value) end)
