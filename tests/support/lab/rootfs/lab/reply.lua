-- SPDX-License-Identifier: GPL-3.0-or-later
-- Prints the exit code (argument) and the output (standard input) of a command as one line of JSON.
package.cpath = "/usr/lib/lua/?.so"
local cjson = require "cjson"
print("GUEST reply " .. cjson.encode { code = tonumber(arg[1]), output = io.read("a") })
