-- The admission of nginx_lua.conf. Keys in Redis (unhashed: hashing them would cost more), one script call a request over pooled connections.
local redis = require "nginx.redis"
local M = {}
local TIERS = { starter = 1000, pro = 3000, enterprise = 4000000000 }
local ENDPOINTS = { ["/api/v1/data/markets"] = { starter = true, pro = true, enterprise = true },
                    ["/api/v1/data/rankings"] = { enterprise = true } }
local CHARGE = [[
local key = redis.call('HMGET', KEYS[1], 'id', 'tier', 'state')
if not key[1] or key[3] ~= 'active' then return {401} end
local limit = tonumber(ARGV[1]) or 0
local used = redis.call('INCR', KEYS[2])
if used == 1 then redis.call('EXPIRE', KEYS[2], 172800) end
return {200, used, key[1], key[2]}
]]
local sha

local function answer(status, code)
    ngx.status = status
    ngx.header["Content-Type"] = "application/problem+json"
    ngx.say('{"type":"about:blank","status":', status, ',"code":"', code, '"}')
    return ngx.exit(status)
end

function M.admit(port)
    local presented = ngx.var.http_x_api_key
    if not presented then return answer(401, "MISSING_API_KEY") end
    local link = redis:new()
    link:set_timeout(1000)
    if not link:connect("127.0.0.1", port) then return answer(500, "INTERNAL_ERROR") end
    if not sha then sha = link:script("load", CHARGE) end
    local got = link:evalsha(sha, 2, "key:" .. presented, "used:" .. ngx.today() .. ":" .. presented, 0)
    link:set_keepalive(10000, 128)
    if not got then return answer(500, "INTERNAL_ERROR") end
    if got[1] == 401 then return answer(401, "INVALID_API_KEY") end
    local endpoint = ENDPOINTS[ngx.var.uri]
    if not endpoint then return answer(404, "NOT_FOUND") end
    if not endpoint[got[4]] then return answer(403, "TIER_INSUFFICIENT") end
    local limit = TIERS[got[4]]
    ngx.ctx.limit, ngx.ctx.used = limit, got[2]
    if got[2] > limit then return answer(429, "RATE_LIMIT_EXCEEDED") end
    ngx.req.set_header("X-Consumer-Id", got[3])
end

function M.tell()
    local limit = ngx.ctx.limit
    if not limit then return end
    local reset = 86400 - ngx.time() % 86400
    ngx.header["X-RateLimit-Limit"] = limit
    ngx.header["X-RateLimit-Remaining"] = math.max(0, limit - ngx.ctx.used)
    ngx.header["X-RateLimit-Reset"] = ngx.time() + reset
    ngx.header["RateLimit-Policy"] = '"daily";q=' .. limit .. ';w=86400'
    ngx.header["RateLimit"] = '"daily";r=' .. math.max(0, limit - ngx.ctx.used) .. ';t=' .. reset
end

return M
