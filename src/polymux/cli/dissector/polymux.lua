-- A Wireshark dissector for the stream-multiplexing protocols that polymux knows.
-- Written by `polymux dissector`; the tables below come from its protocol classes.
--
-- A connection is dissected if polymux recorded it (its first packet has a comment that names the
-- protocol), if one of its ports is listed in the preferences, or if its first bytes can be no other
-- protocol. Bytes are decoded once, in the order of the first pass; what was found in a packet is
-- kept by its number, so that packets can be dissected again in any order.

--@TABLES@

local band, rshift, bxor = bit32.band, bit32.rshift, bit32.bxor
local byte, sub, find = string.byte, string.sub, string.find

local MAX_FRAME_BYTES = 67108864 -- a longer frame is not put together
local MAX_NAME_BYTES = 256
local TWO_TO_THE_32 = 4294967296
local EXACT = 9007199254740992 -- numbers from here on are not exact

-- Statuses of decoders, in place of a position
local INCOMPLETE, INVALID = -1, -2

local polymux = Proto("polymux", "polymux stream multiplexing")
local fields = {
  protocol = ProtoField.string("polymux.protocol", "Protocol"),
  kind = ProtoField.string("polymux.kind", "Kind"),
  sender = ProtoField.string("polymux.sender", "Sender"),
  stream = ProtoField.uint64("polymux.stream", "Stream"),
  opener = ProtoField.string("polymux.opener", "Opener"),
  amount = ProtoField.uint64("polymux.amount", "Amount"),
  length = ProtoField.uint32("polymux.length", "Payload length"),
  size = ProtoField.uint32("polymux.size", "Frame size"),
  name = ProtoField.string("polymux.name", "Name"),
  undecoded = ProtoField.bytes("polymux.undecoded", "Undecoded"),
}
polymux.fields = fields
local undecodable = ProtoExpert.new(
  "polymux.undecodable", "The bytes cannot be decoded any further",
  expert.group.MALFORMED, expert.severity.WARN)
polymux.experts = { undecodable }

for _, entry in ipairs(PORT_PREFERENCES) do
  polymux.prefs[entry.preference] = Pref.range(
    entry.protocol .. " ports", entry.ports, "TCP ports of " .. entry.protocol, 65535)
end
polymux.prefs.heuristics = Pref.bool(
  "Recognise by first bytes", true, "Dissect connections whose first bytes leave no doubt")

local get_comment = Field.new("frame.comment")

local SIDES = { [0] = "dialer", [1] = "acceptor", [2] = "neither" }
local connections = {} -- the newest TCP connection of each pair of endpoints
local packet_connections = {} -- by packet
local found_frames = {} -- by packet: what each call found

-- Numbers

local function u64(value)
  if type(value) ~= "number" then return value end
  return UInt64(value % TWO_TO_THE_32, math.floor(value / TWO_TO_THE_32))
end

local function big_endian(data, pos, width)
  -- A number if it is exact, else a UInt64.
  local high, low = 0, 0
  for i = pos, pos + width - 1 do
    high = (high * 256 + math.floor(low / 16777216)) % TWO_TO_THE_32
    low = (low % 16777216) * 256 + byte(data, i)
  end
  local value = high * TWO_TO_THE_32 + low
  if value < EXACT then return value end
  return UInt64(low, high)
end

local function as_double(value)
  if type(value) == "number" then return value end
  return value:tonumber()
end

local function uvarint(data, pos)
  -- Unsigned base-128, at most nine bytes: low and high parts of 28 and 35 bits, and where it ends.
  local low, high, scale = 0, 0, 1
  for i = 0, 8 do
    local b = byte(data, pos + i)
    if b == nil then return 0, 0, INCOMPLETE end
    if i == 4 then scale = 1 end
    if i < 4 then low = low + (b % 128) * scale else high = high + (b % 128) * scale end
    scale = scale * 128
    if b < 128 then return low, high, pos + i + 1 end
  end
  return 0, 0, INVALID
end

local function varu64(data, pos)
  local first = byte(data, pos)
  if first == nil then return 0, INCOMPLETE end
  if first < 248 then return first, pos + 1 end
  local width = first - 247
  if #data - pos < width then return 0, INCOMPLETE end
  return big_endian(data, pos + 1, width), pos + 1 + width
end

-- msgpack, as far as Nerdbank frames use it

local INT_WIDTHS = { [0xcc] = 1, [0xd0] = 1, [0xcd] = 2, [0xd1] = 2, [0xce] = 4, [0xd2] = 4,
  [0xcf] = 8, [0xd3] = 8, [0xcb] = 8 }
local BLOB_WIDTHS = { [0xc4] = 1, [0xd9] = 1, [0xc5] = 2, [0xda] = 2, [0xc6] = 4, [0xdb] = 4 }

local function float_as_integer(data, pos)
  local high, low = big_endian(data, pos, 4), big_endian(data, pos + 4, 4)
  local negative, exponent = high >= 2147483648, band(rshift(high, 20), 2047)
  local mantissa = (high % 1048576) * TWO_TO_THE_32 + low
  if exponent == 0 and mantissa == 0 then return 0 end
  if negative or exponent == 0 then return -1 end
  if exponent == 2047 then return mantissa == 0 and 9.3e18 or -1 end
  local number = (mantissa / 4503599627370496 + 1) * 2 ^ (exponent - 1023)
  if number ~= math.floor(number) then return -1 end
  return number
end

local function msgpack_int(data, pos)
  local code = byte(data, pos)
  if code == nil then return 0, INCOMPLETE end
  if code < 0x80 then return code, pos + 1 end
  if code >= 0xe0 then return code - 256, pos + 1 end
  local width = INT_WIDTHS[code]
  if width == nil then return 0, INVALID end
  if #data - pos < width then return 0, INCOMPLETE end
  if code == 0xcb then
    local number = float_as_integer(data, pos + 1)
    if number >= EXACT and number < 9.0e18 then number = u64(number) end
    if type(number) == "number" and number >= 9.0e18 then number = UInt64.max():rshift(1) end
    return number, pos + 9
  end
  local value = big_endian(data, pos + 1, width)
  if code >= 0xd0 and byte(data, pos + 1) > 127 then
    if width == 8 then -- only whether it is -1 matters
      return sub(data, pos + 1, pos + 8) == string.rep("\255", 8) and -1 or -2, pos + 9
    end
    return value - 256 ^ width, pos + 1 + width
  end
  return value, pos + 1 + width
end

local function msgpack_blob(data, pos)
  local code = byte(data, pos)
  if code == nil then return 0, INCOMPLETE end
  if code == 0xc0 then return 0, pos + 1 end
  if code >= 0xa0 and code <= 0xbf then return code - 0xa0, pos + 1 end
  local width = BLOB_WIDTHS[code]
  if width == nil then return 0, INVALID end
  if #data - pos < width then return 0, INCOMPLETE end
  return big_endian(data, pos + 1, width), pos + 1 + width
end

local function msgpack_array(data, pos)
  local code = byte(data, pos)
  if code == nil then return 0, INCOMPLETE end
  if code >= 0x90 and code <= 0x9f then return code - 0x90, pos + 1 end
  local width = code == 0xdc and 2 or code == 0xdd and 4 or nil
  if width == nil then return 0, INVALID end
  if #data - pos < width then return 0, INCOMPLETE end
  return big_endian(data, pos + 1, width), pos + 1 + width
end

local FIXED_SIZES = { [0xca] = 5, [0xcb] = 9, [0xd4] = 3, [0xd5] = 4, [0xd6] = 6, [0xd7] = 10,
  [0xd8] = 18 }

local function msgpack_skip(data, pos, values)
  local left = MAX_SKIPPED_VALUES
  while values > 0 do
    if values > left then return INVALID end
    local code = byte(data, pos)
    if code == nil then return INCOMPLETE end
    values, left = values - 1, left - 1
    local size = 1
    if code < 0x80 or code >= 0xe0 or code == 0xc0 or code == 0xc2 or code == 0xc3 then
      size = 1
    elseif code < 0x90 then
      values = values + (code % 16) * 2
    elseif code < 0xa0 then
      values = values + code % 16
    elseif code < 0xc0 then
      size = 1 + code % 32
    elseif code == 0xc1 then
      return INVALID
    elseif FIXED_SIZES[code] then
      size = FIXED_SIZES[code]
    elseif INT_WIDTHS[code] then
      size = 1 + INT_WIDTHS[code]
    else
      local width = 4
      if code == 0xc4 or code == 0xc7 or code == 0xd9 then
        width = 1
      elseif code == 0xc5 or code == 0xc8 or code == 0xda or code == 0xdc or code == 0xde then
        width = 2
      end
      if #data - pos < width then return INCOMPLETE end
      local count = big_endian(data, pos + 1, width)
      size = 1 + width
      if code == 0xdc or code == 0xdd then
        values = values + count
      elseif code == 0xde or code == 0xdf then
        values = values + count * 2
      elseif code >= 0xc7 and code <= 0xc9 then
        size = 2 + width + count
      else
        size = size + count
      end
    end
    if size > #data - pos + 1 then return INCOMPLETE end
    pos = pos + size
  end
  return pos
end

-- Decoders. Each takes the conversation, the direction, the data and a position in it. It returns a
-- frame with its size; or INCOMPLETE and the size of the frame, if that is known (a part of it must not
-- be asked for: Wireshark then loses packets in its second pass); or INVALID and why.

local decoders = {}

local function frame_of(size, kind, stream, opener, length)
  return { size = size, kind = kind, stream = stream, opener = opener, length = length }
end

local function complete(frame, data, pos)
  if frame.size > #data - pos + 1 then return INCOMPLETE, frame.size end
  return frame
end

function decoders.mplex(_, dir, data, pos)
  local low, high, mid = uvarint(data, pos)
  if mid == INCOMPLETE then return INCOMPLETE end
  if mid == INVALID then return INVALID, "a varint of more than nine bytes" end
  local size_low, size_high, start = uvarint(data, mid)
  if start == INCOMPLETE then return INCOMPLETE end
  if start == INVALID then return INVALID, "a varint of more than nine bytes" end
  local kind = low % 8
  local id = high * 33554432 + math.floor(low / 8)
  if high >= 134217728 then
    id = UInt64(low, 0):bor(u64(high):lshift(28)):rshift(3)
  end
  local length = size_high * 268435456 + size_low
  local opener = bxor(dir.side, kind % 2)
  if kind == 7 then id, opener = nil, nil end
  local frame = frame_of(start - pos + length, kind, id, opener, length)
  if kind == 0 or kind == 5 or kind == 6 then frame.name_at, frame.name_size = start, length end
  return complete(frame, data, pos)
end

function decoders.yamux(conversation, dir, data, pos)
  local version, kind = byte(data, pos, pos + 1)
  if version ~= 0 then return INVALID, "version " .. version .. " in place of 0" end
  if kind ~= nil and kind > 3 then return INVALID, "type " .. kind .. " in place of 0 to 3" end
  if #data - pos < 11 then return INCOMPLETE end
  local flags = byte(data, pos + 3) % 16
  local id, length = big_endian(data, pos + 4, 4), big_endian(data, pos + 8, 4)
  kind = kind * 16 + flags
  local frame = frame_of(12, kind, id, 1 - id % 2, 0)
  if kind < 16 then
    frame.size, frame.length = 12 + length, length
  else
    frame.amount = length
  end
  if kind >= 32 then
    frame.stream, frame.opener = nil, nil
  elseif frame.size <= #data - pos + 1 then
    local openers = conversation.openers
    if flags % 2 == 1 then openers[id] = dir.side end
    frame.opener = openers[id] or frame.opener
  end
  return complete(frame, data, pos)
end

-- Nerdbank

local MAX_CHANNEL_ID = UInt64(0xffffffff, 0x0fffffff)

local function nerdbank_handshake(conversation, dir, data, pos)
  local size, start
  if conversation.version == 1 then
    local there = math.min(4, #data - pos + 1)
    if sub(data, pos, pos + there - 1) ~= sub(NERDBANK_MAGIC, 1, there) then
      return INVALID, "not the magic of version 1"
    end
    if there < 4 then return INCOMPLETE, 20 end
    size, start = 20, pos + 4
  else
    local outer, at = msgpack_array(data, pos)
    local count, major = 0, 0
    if at > 0 then count, at = msgpack_array(data, at) end
    if at > 0 then major, at = msgpack_int(data, at) end
    if at > 0 and major ~= 2 then return INVALID, "not the handshake of version 2" end
    if at > 0 and (outer < 2 or count < 2) then at = INVALID end
    if at > 0 then at = msgpack_skip(data, at, count - 1) end
    local blob = 0
    start = at
    if at > 0 then
      blob, start = msgpack_blob(data, at)
      if start > 0 and blob ~= 16 then start = INVALID end
    end
    local after = start > 0 and start + blob or start
    if start > 0 and outer > 2 then
      after = start + blob - 1 <= #data and msgpack_skip(data, start + blob, outer - 2)
        or INCOMPLETE
    end
    if after == INVALID or (after == INCOMPLETE and #data - pos + 1 > MAX_CONTROL_BYTES) then
      return INVALID, "a handshake that cannot be read"
    end
    if after == INCOMPLETE then return INCOMPLETE end
    size = after - pos
  end
  local frame = frame_of(size, 255, nil, nil, 16)
  if size > #data - pos + 1 then return INCOMPLETE, size end
  dir.random = sub(data, start, start + 15)
  local dialer, acceptor = conversation.dirs[0].random, conversation.dirs[1].random
  if dialer and acceptor then conversation.odd_side = dialer > acceptor and 0 or 1 end
  return frame
end

local function nerdbank_malformed(data, pos)
  local after = msgpack_skip(data, pos, 1)
  if after == INCOMPLETE and #data - pos + 1 <= NERDBANK_MAX_FRAME_BYTES then return INCOMPLETE end
  if after < 0 then return INVALID, "a frame whose end is not known" end
  return frame_of(after - pos, 254, nil, nil, after - pos - 1)
end

local function nerdbank_amount(frame, data, start, stop)
  -- The window or the count in the payload of a control frame, and its name.
  data = sub(data, 1, stop)
  local kind = frame.kind
  local count, at = 0, INVALID
  if stop >= start then count, at = msgpack_array(data, start) end
  if kind == 0 then
    if at < 0 or count < 1 then return end
    local size
    size, at = msgpack_blob(data, at)
    if at < 0 or size > stop - at + 1 then return end
    frame.name_at, frame.name_size = at, size
    at, count = at + size, count - 1
  elseif kind == 4 then
    if at < 0 or count < 1 then return end
    local size
    size, at = msgpack_blob(data, at)
    if at > 0 and size <= stop - at + 1 then frame.name_at, frame.name_size = at, size end
    return
  elseif kind ~= 1 and kind ~= 5 and kind ~= 7 then
    return
  end
  if at < 0 or count < 1 then return end
  local amount
  amount, at = msgpack_int(data, at)
  if at > 0 and (as_double(amount) > 0 or (kind == 5 and amount == 0)) then frame.amount = amount end
end

local function nerdbank_v1(data, pos)
  if #data - pos < 6 then return INCOMPLETE end
  local kind, id = byte(data, pos), big_endian(data, pos + 1, 4)
  local length = big_endian(data, pos + 5, 2)
  local frame = frame_of(7 + length, kind, id, nil, length)
  if kind > NERDBANK_MAX_CODE then
    frame.kind, frame.stream = 254, nil
  elseif kind == 0 then
    frame.name_at, frame.name_size = pos + 7, length
  end
  return complete(frame, data, pos)
end

local function nerdbank_v2_v3(dir, data, pos, wanted)
  local function failed(at)
    if at == INVALID then return nerdbank_malformed(data, pos) end
    return INCOMPLETE
  end
  local count, at = msgpack_array(data, pos)
  if at < 0 then return failed(at) end
  if count < wanted then return nerdbank_malformed(data, pos) end
  local code, id
  code, at = msgpack_int(data, at)
  if at < 0 then return failed(at) end
  id, at = msgpack_int(data, at)
  if at < 0 then return failed(at) end
  code = as_double(code)
  local too_large
  if type(id) == "number" then too_large = id < 0 else too_large = id > MAX_CHANNEL_ID end
  if code < 0 or code > NERDBANK_MAX_CODE or too_large then
    return nerdbank_malformed(data, pos)
  end
  local opener
  if wanted == 3 then
    local source
    source, at = msgpack_int(data, at)
    if at < 0 then return failed(at) end
    if source == -1 then
      opener = 1 - dir.side
    elseif source == 1 then
      opener = dir.side
    elseif source == 0 then
      opener = 2
    else
      return nerdbank_malformed(data, pos)
    end
  end
  local size, after = 0, at
  if count > wanted then
    size, at = msgpack_blob(data, at)
    if at < 0 then return failed(at) end
    after = at + size
    if count > wanted + 1 then
      after = INCOMPLETE
      if size <= #data - at + 1 then
        after = msgpack_skip(data, at + size, count - wanted - 1)
      end
      if after == INCOMPLETE and #data - pos + 1 <= NERDBANK_MAX_FRAME_BYTES then
        return INCOMPLETE
      end
      if after < 0 then return INVALID, "a frame whose end is not known" end
    end
  end
  local frame = frame_of(after - pos, code, id, opener, size)
  if frame.size > #data - pos + 1 then return INCOMPLETE, frame.size end
  nerdbank_amount(frame, data, at, at + size - 1)
  return frame
end

function decoders.nerdbank(conversation, dir, data, pos)
  if conversation.version == 3 then return nerdbank_v2_v3(dir, data, pos, 3) end
  if dir.random == nil then return nerdbank_handshake(conversation, dir, data, pos) end
  local frame, more
  if conversation.version == 1 then
    frame, more = nerdbank_v1(data, pos)
  else
    frame, more = nerdbank_v2_v3(dir, data, pos, 2)
  end
  if type(frame) == "table" and frame.stream then
    -- Which side has the odd ids may become known only later.
    local id = type(frame.stream) == "number" and frame.stream or frame.stream:lower()
    frame.parity = id % 2
  end
  return frame, more
end

-- omnistreams

local function omnistreams_message(conversation, dir, message, length, size)
  -- A frame from the first bytes of a message of `length` bytes.
  if length == 0 then return frame_of(size, 7, nil, nil, 0) end
  local kind = conversation.kinds[byte(message, 1)] or 7
  if kind == 0 then return frame_of(size, 0, nil, nil, length - 1) end
  if kind == 7 then return frame_of(size, 7, nil, nil, length) end
  if length == 1 then return frame_of(size, kind, nil, nil, 0) end
  local opener = kind < 5 and dir.side or 1 - dir.side
  local frame = frame_of(size, kind, byte(message, 2), opener, length - 2)
  if kind == 5 and length > 2 then frame.amount = byte(message, 3) end
  return frame
end

local function omnistreams_prefixed(conversation, dir, data, pos)
  if #data - pos < 3 then return INCOMPLETE end
  local length = big_endian(data, pos, 4)
  if 4 + length > #data - pos + 1 then return INCOMPLETE, 4 + length end
  local frame = omnistreams_message(conversation, dir, sub(data, pos + 4, pos + 6), length, 4 + length)
  if frame.kind == 1 and frame.stream and frame.length <= MAX_METADATA_BYTES then
    frame.name_at, frame.name_size = pos + 6, frame.length
  end
  return frame
end

local function websocket_frame(conversation, dir, data, pos)
  -- The next WebSocket frame; the message is a frame of omnistreams once its last one is here.
  if dir.closed then return { size = #data - pos + 1, overhead = "after the close" } end
  if #data - pos < 1 then return INCOMPLETE end
  local first, second = byte(data, pos, pos + 1)
  local length, at = second % 128, pos + 2
  local minimal = true
  if length == 126 then
    if #data - pos < 3 then return INCOMPLETE end
    length, at = big_endian(data, pos + 2, 2), pos + 4
    minimal = length >= 126
  elseif length == 127 then
    if #data - pos < 9 then return INCOMPLETE end
    if byte(data, pos + 2) > 127 then return INVALID, "an impossible length" end
    length, at = as_double(big_endian(data, pos + 2, 8)), pos + 10
    minimal = length >= 65536
  end
  local key
  if second > 127 then
    if #data < at + 3 then return INCOMPLETE end
    key = { byte(data, at, at + 3) }
    at = at + 4
  end
  local size = at - pos + length
  if size > #data - pos + 1 then return INCOMPLETE, size end
  local opcode, final = first % 16, first >= 128
  local overhead = { size = size, overhead = "WebSocket opcode " .. opcode }
  local unreadable = band(first, 0x70) ~= 0 or not minimal
  if opcode > 10 or (opcode > 2 and opcode < 8) then return overhead end
  if opcode >= 8 then
    unreadable = unreadable or not final or length > 125
    if opcode == 8 and not unreadable then dir.closed, dir.message = true, nil end
    return overhead
  end
  local message = dir.message
  if opcode == 0 then
    unreadable = unreadable or message == nil
    if message and message.discarded then unreadable = false end
  else
    message = { head = "", length = 0, size = 0 }
    unreadable = unreadable or opcode == 1
  end
  message = message or { head = "", length = 0, size = 0 }
  if message.length + length > OMNISTREAMS_MAX_MESSAGE_BYTES and not message.discarded then
    unreadable = true
  end
  if opcode ~= 0 and dir.message ~= nil then unreadable = true end
  if unreadable then message.discarded = true end
  if not message.discarded then
    local bytes, have = {}, #message.head
    for i = 1, math.min(length, 2 + MAX_NAME_BYTES - have) do
      local b = byte(data, at + i - 1)
      bytes[i] = string.char(key and bxor(b, key[(i - 1) % 4 + 1]) or b)
    end
    message.head = message.head .. table.concat(bytes)
    message.length, message.size = message.length + length, message.size + size
  end
  if not final then
    dir.message = message
    return overhead
  end
  dir.message = nil
  if message.discarded then return overhead end
  local frame = omnistreams_message(conversation, dir, message.head, message.length, size)
  frame.wire_size = message.size
  if frame.kind == 1 and frame.stream and frame.length <= MAX_METADATA_BYTES then
    frame.name = sub(message.head, 3)
  end
  return frame
end

local function http_head(conversation, dir, data, pos)
  -- The head of a WebSocket upgrade, as one piece without a frame.
  local _, strict = find(data, "\n\r\n", pos, true)
  local _, bare = find(data, "\n\n", pos, true)
  local stop = strict and bare and math.min(strict, bare) or strict or bare
  if stop == nil then
    if #data - pos + 1 >= MAX_HEAD_BYTES then return INVALID, "an HTTP head that is too long" end
    return INCOMPLETE
  end
  local head = string.lower(sub(data, pos, stop))
  if not find(head, "\nupgrade:[^\n]*websocket") then return INVALID, "no upgrade to WebSocket" end
  if dir.side == 1 then
    if not find(head, "^http/1%.%d 101") then return INVALID, "the upgrade was refused" end
    if find(head, "\nsec%-websocket%-extensions:%s*[^%s\r\n]") then
      conversation.undecodable = "an extension of WebSocket was agreed on"
    end
  end
  dir.upgraded = true
  return { size = stop - pos + 1, overhead = "WebSocket upgrade" }
end

function decoders.omnistreams(conversation, dir, data, pos)
  if conversation.undecodable then return INVALID, conversation.undecodable end
  if conversation.carrier == nil then
    local first = byte(data, pos)
    local start = sub(data, pos, pos + 3)
    local expected = dir.side == 0 and "GET " or "HTTP"
    if start == expected then
      conversation.carrier = "upgrade"
    elseif #start < 4 and start == sub(expected, 1, #start) then
      return INCOMPLETE
    elseif first == 0x82 or first == 0x88 or first == 0x89 or first == 0x8a then
      conversation.carrier = "websocket"
    else
      conversation.carrier = "length"
    end
  end
  if conversation.carrier == "length" then
    return omnistreams_prefixed(conversation, dir, data, pos)
  end
  local expected = dir.side == 0 and "GET " or "HTTP"
  if not dir.upgraded and (conversation.carrier == "upgrade"
      or sub(data, pos, pos + 3) == expected) then
    return http_head(conversation, dir, data, pos)
  end
  dir.upgraded = true
  return websocket_frame(conversation, dir, data, pos)
end

-- Streamux

local function streamux_initiator(conversation, dir, data, pos)
  if #data - pos < 3 then return INCOMPLETE, 4 end
  local version, length_bits, id_bits = byte(data, pos, pos + 2)
  local total = length_bits + id_bits
  if version == 1 and length_bits > 0 and id_bits > 0 and (total == 14 or total == 30) then
    dir.layout = { width = total == 14 and 2 or 4, length_bits = length_bits, id_bits = id_bits }
  else
    dir.layout = { width = 0 }
  end
  local other = conversation.dirs[1 - dir.side]
  if dir.layout.width > 0 and other.layout and other.layout.width > 0
      and other.layout.width ~= dir.layout.width then
    conversation.undecodable = "the two sides have headers of different sizes"
  end
  return frame_of(4, 8, nil, nil, 0)
end

function decoders.streamux(conversation, dir, data, pos)
  if dir.layout == nil then return streamux_initiator(conversation, dir, data, pos) end
  if conversation.undecodable then return INVALID, conversation.undecodable end
  local width = dir.layout.width
  if width == 0 then return INVALID, "after an initiator that cannot be understood" end
  if #data - pos + 1 < width then return INCOMPLETE end
  local word = 0
  for i = width - 1, 0, -1 do word = word * 256 + byte(data, pos + i) end
  local flags = rshift(word, width * 8 - 2)
  local replying = flags % 2
  local opener = bxor(dir.side, replying)
  local layout = conversation.dirs[opener].layout
  if layout == nil then return INCOMPLETE end -- it lays out this header and has not come yet
  if layout.width ~= width then return INVALID, "the initiator that lays out this header was bad" end
  local id = word % 2 ^ layout.id_bits
  local length = math.floor(word / 2 ^ layout.id_bits) % 2 ^ layout.length_bits
  local kind = rshift(flags, 1) + 2 * replying
  local last = kind % 2 == 1
  local exchanges = conversation.exchanges[opener]
  local exchange = exchanges[id]
  if length == 0 and not (last and exchange and
      (replying == 1 and exchange.reply_started or replying == 0 and exchange.request_started)) then
    kind = kind + 4
  end
  local frame = frame_of(width + length, kind, id, opener, length)
  if frame.size > #data - pos + 1 then return INCOMPLETE, frame.size end
  if kind == 5 then
    frame.stream, frame.opener = nil, nil
  elseif kind < 2 then
    if exchange == nil or exchange.request_done then
      if exchange == nil or exchange.reply_done or exchange.cancelled then
        exchange = {}
        exchanges[id] = exchange
      else
        return frame -- the id is busy: it belongs to no exchange
      end
    elseif exchange.cancelled then
      exchange = {}
      exchanges[id] = exchange
    end
    exchange.request_started = not last
    exchange.request_done = last
  elseif kind == 4 then
    if exchange then exchange.request_started, exchange.cancelled = false, true end
  elseif kind == 2 or kind == 3 or kind == 7 then
    if exchange and not exchange.reply_done then
      exchange.reply_started = kind == 2
      exchange.reply_done = kind ~= 2
    end
  elseif kind == 6 then
    if exchange then exchange.reply_started, exchange.reply_done = false, true end
  end
  return frame
end

-- Minmux

local function minmux_limit(stream, half, amount, lowers)
  -- Announce a limit, or use some of it up. `half` is "writer" or "reader".
  local limit = stream[half]
  if lowers then
    if limit == nil or amount < limit then stream[half] = amount end
  elseif limit ~= nil and limit > 0 then
    stream[half] = math.max(0, limit - amount)
  end
end

local function minmux_items(data, at, count)
  -- Where `count` items with a length before each end.
  for _ = 1, count do
    local length, start = varu64(data, at)
    if start < 0 then return INCOMPLETE end
    length = as_double(length)
    if length > 2 ^ 61 then return INVALID end
    at = start + length
    if at > #data + 1 then return INCOMPLETE end
  end
  return at
end

function decoders.minmux(conversation, dir, data, pos)
  local head = byte(data, pos)
  local id, at = head % 64, pos + 1
  if id == 63 then
    id, at = varu64(data, at)
    if at < 0 then return INCOMPLETE end
    if type(id) == "number" then
      id = id + 63
      if id >= EXACT then id = u64(id) end
    else
      if id > UInt64.max() - UInt64(63) then return INVALID, "a stream id past 2^64-1" end
      id = id + UInt64(63)
    end
  end
  local amount, start = varu64(data, at)
  if start < 0 then return INCOMPLETE end
  local low = type(id) == "number" and id or id:lower()
  local writer = 1 - low % 2
  local kind = math.floor(head / 64) * 2 + (writer == dir.side and 1 or 0)
  if kind ~= 2 and kind ~= 3 and kind ~= 4 then
    if type(amount) == "number" then
      amount = amount + 1
      if amount >= EXACT then amount = u64(amount) end
    else
      if amount == UInt64.max() then return INVALID, "an amount of 2^64" end
      amount = amount + UInt64(1)
    end
  end
  local profile = conversation.profile
  local key = tostring(id)
  local form = profile.streams[key] or profile.default
  local frame = frame_of(start - pos, kind, id, writer, 0)
  frame.amount = amount
  local number = as_double(amount)
  if form == nil then
    if kind == 1 then return INVALID, "stream " .. key .. " is not in the profile" end
    frame.stream, frame.opener = id, writer
    return frame
  end
  local stream = conversation.streams[key] or {}
  local last = kind == 1 and stream.writer == 0 and not stream.last_seen and number == 1
    and form.last ~= 0
  if kind == 1 then
    local stop
    if last then
      if form.last > 0 then stop = start + form.last else stop = minmux_items(data, start, 1) end
    elseif form.item == 0 then
      stop = start
    elseif form.item > 0 then
      stop = start + number * form.item
    else
      stop = minmux_items(data, start, number)
    end
    if stop == INVALID then return INVALID, "an item's size cannot be read" end
    if stop == INCOMPLETE then return INCOMPLETE end
    frame.size, frame.length = stop - pos, stop - start
    if frame.size > #data - pos + 1 then return INCOMPLETE, frame.size end
  end
  local writer_done = stream.writer == 0 and (form.last == 0 or stream.last_seen)
  if profile.reuse and writer_done and stream.reader == 0
      and kind ~= 1 and kind ~= 4 and kind ~= 5 then
    stream = {}
  end
  conversation.streams[key] = stream
  if last then
    stream.last_seen = true
  elseif kind == 1 then
    minmux_limit(stream, "writer", number, false)
  elseif kind == 0 then
    minmux_limit(stream, "reader", number, false)
  elseif kind == 2 then
    minmux_limit(stream, "reader", number, true)
  elseif kind == 3 and form.last ~= -3 then
    minmux_limit(stream, "writer", number, true)
  end
  return frame
end

-- Conversations

local function new_direction(side)
  return { side = side }
end

local function make_conversation(text)
  -- From a protocol string, NAME[:key=value,...]; nil if it names no protocol.
  local name, rest = string.match(text, "^%s*(%a+):?(.*)$")
  if name == nil or decoders[name] == nil or KINDS[name] == nil then return nil end
  local options = {}
  for key, value in string.gmatch(rest, "([%a_]+)=([^,]*)") do options[key] = value end
  local conversation = {
    protocol = name,
    decode = decoders[name],
    names = KINDS[name],
    dirs = { [0] = new_direction(0), [1] = new_direction(1) },
    preamble = options.preamble,
    openers = {},
    exchanges = { [0] = {}, [1] = {} },
    streams = {},
  }
  if name == "nerdbank" then conversation.version = tonumber(options.version or 3) end
  if name == "omnistreams" then
    conversation.kinds = options.numbering == "legacy" and LEGACY_KINDS or SPEC_KINDS
    if options.carrier ~= "" then conversation.carrier = options.carrier end
  end
  if name == "minmux" then
    conversation.profile = PROFILES[options.profile or ""] or PROFILES[""]
  end
  return conversation
end

local port_protocols = {} -- by port, from the preferences
local registered_ranges = {}

local function endpoint(address, port)
  return tostring(address) .. " " .. port
end

local function multistream_size(data)
  -- Bytes of the multistream-select lines that a side begins with, or INCOMPLETE.
  local mark = "\19/multistream/1.0.0\n"
  local there = math.min(#mark, #data)
  if sub(data, 1, there) ~= sub(mark, 1, there) then return 0 end
  local pos = 1
  for _ = 1, 16 do
    if #data - pos < 1 then break end
    local size, start = byte(data, pos), pos + 1
    if size > 127 then size, start = size % 128 + byte(data, pos + 1) * 128, pos + 2 end
    local line = sub(data, start, start + size - 1)
    if #line ~= size or sub(line, -1) ~= "\n" then break end
    if line ~= "na\n" and line ~= "ls\n" and sub(line, 1, 1) ~= "/" then break end
    pos = start + size
  end
  return pos - 1
end

local function conversation_of(pinfo)
  local known = packet_connections[pinfo.number]
  if known == nil then return nil end
  if known.state == nil then
    local text = known.hint or port_protocols[pinfo.dst_port] or port_protocols[pinfo.src_port]
      or known.guess
    if text == nil then return nil end
    known.state = make_conversation(text)
    if known.state == nil then return nil end
    known.text = text
    if known.dialer == nil then
      local from_acceptor
      if port_protocols[pinfo.src_port] and not port_protocols[pinfo.dst_port] then
        from_acceptor = true
      elseif port_protocols[pinfo.dst_port] and not port_protocols[pinfo.src_port] then
        from_acceptor = false
      else
        from_acceptor = pinfo.src_port < pinfo.dst_port
      end
      known.dialer = from_acceptor and endpoint(pinfo.dst, pinfo.dst_port)
        or endpoint(pinfo.src, pinfo.src_port)
    end
  end
  return known.state, known
end

-- Showing frames

local function add_frame(conversation, side, frame, tvb, pinfo, tree)
  local range = tvb(frame.at, frame.size)
  if frame.overhead then
    tree:add(polymux, range, frame.overhead)
    return
  end
  local name = conversation.names[frame.kind] or ("Code" .. frame.kind)
  local item = tree:add(polymux, range, conversation.protocol .. " " .. name)
  item:add(fields.protocol, range, conversation.protocol):set_generated()
  item:add(fields.kind, range, name)
  item:add(fields.sender, range, SIDES[side]):set_generated()
  local label = ""
  if frame.stream then
    item:add(fields.stream, range, u64(frame.stream))
    local opener = frame.opener
    if frame.parity and conversation.odd_side then
      opener = frame.parity == 1 and conversation.odd_side or 1 - conversation.odd_side
    end
    if opener then item:add(fields.opener, range, SIDES[opener]) end
    label = " " .. (opener and sub(SIDES[opener], 1, 1) or "") .. tostring(frame.stream)
  end
  if frame.amount then item:add(fields.amount, range, u64(frame.amount)) end
  item:add(fields.length, range, frame.length)
  item:add(fields.size, range, frame.wire_size or frame.size):set_generated()
  if frame.name and #frame.name > 0 then item:add(fields.name, range, frame.name) end
  item:append_text(label .. ", " .. frame.length .. " bytes")
  pinfo.cols.info:append(" " .. name .. label)
end

local function show(conversation, side, found, tvb, pinfo, tree)
  pinfo.cols.protocol = conversation.protocol
  pinfo.cols.info:clear()
  for _, frame in ipairs(found) do
    if frame.at + frame.size <= tvb:len() then
      add_frame(conversation, side, frame, tvb, pinfo, tree)
    end
  end
  if found.stopped and found.stopped_at < tvb:len() then
    local item = tree:add(fields.undecoded, tvb(found.stopped_at))
    item:add_proto_expert_info(undecodable, found.stopped)
  end
end

local function printable(text)
  return (string.gsub(sub(text, 1, MAX_NAME_BYTES), "[^\32-\126]", "."))
end

local function decode_all(conversation, dir, data, can_wait)
  -- Every frame of the data; where the rest begins, and how many bytes it needs (0: not known).
  local found = {}
  local pos = 1
  while pos <= #data do
    if dir.stopped then
      found.stopped, found.stopped_at = dir.stopped, pos - 1
      break
    end
    local frame, more
    if not dir.begun then
      local size = multistream_size(data)
      if conversation.preamble and conversation.preamble ~= "multistream" then
        local bytes = string.gsub(conversation.preamble, "%x%x", function(digits)
          return string.char(tonumber(digits, 16))
        end)
        size = sub(data, 1, #bytes) == bytes and #bytes or 0
      elseif conversation.protocol == "omnistreams" then
        size = 0
      end
      dir.begun = true
      if size > 0 then frame = { size = size, overhead = "preamble" } end
    end
    if frame == nil then frame, more = conversation.decode(conversation, dir, data, pos) end
    if frame == INVALID or (frame == INCOMPLETE and more and more > MAX_FRAME_BYTES) then
      dir.stopped = frame == INVALID and more or "a frame of more than 64 MiB"
    elseif frame == INCOMPLETE then
      if can_wait then found.rest_at, found.needs = pos - 1, more and more - (#data - pos + 1) or 0 end
      break
    else
      frame.at = pos - 1
      if frame.name_at and frame.name_size > 0 then
        frame.name = sub(data, frame.name_at, frame.name_at + math.min(frame.name_size, MAX_NAME_BYTES) - 1)
      end
      if frame.name then frame.name = printable(frame.name) end
      found[#found + 1] = frame
      pos = pos + frame.size
    end
  end
  return found
end

function polymux.dissector(tvb, pinfo, tree)
  local conversation, known = conversation_of(pinfo)
  if conversation == nil then return 0 end
  local side = endpoint(pinfo.src, pinfo.src_port) == known.dialer and 0 or 1
  local key = tvb:len() .. " " .. tvb:offset()
  local packet = found_frames[pinfo.number]
  if packet == nil then
    packet = {}
    found_frames[pinfo.number] = packet
  end
  local found = packet[key]
  if found == nil then
    if pinfo.visited then return 0 end
    found = decode_all(conversation, conversation.dirs[side], tvb:raw(), pinfo.can_desegment > 0)
    packet[key] = found
    if found.rest_at then
      -- Once the rest is part of another packet, the same call comes without it.
      local without_rest = found.rest_at .. " " .. tvb:offset()
      packet[without_rest] = packet[without_rest] or found
    end
  end
  show(conversation, side, found, tvb, pinfo, tree)
  if found.rest_at and found.rest_at < tvb:len() then
    pinfo.desegment_offset = found.rest_at
    pinfo.desegment_len = found.needs > 0 and found.needs or DESEGMENT_ONE_MORE_SEGMENT
  end
  return tvb:len()
end

-- Finding the conversations

local function read_hint(comment)
  for line in string.gmatch(comment, "[^\r\n]+") do
    local text = string.match(line, "^polymux:.-protocol=([^;]*)")
    if text then return (string.gsub(text, "%s+$", "")) end
  end
  return nil
end

local watcher = Proto("polymux_hints", "polymux hints of recordings")

function watcher.dissector(_, pinfo, _)
  -- Fields are not there in the first of two passes: then only ports and first bytes tell.
  local known = packet_connections[pinfo.number]
  if pinfo.visited or known == nil or known.syn_packet ~= pinfo.number then return end
  for _, comment in ipairs({ get_comment() }) do
    known.hint = known.hint or read_hint(tostring(comment.value))
  end
  if known.hint and make_conversation(known.hint) then pinfo.conversation = polymux end
end

register_postdissector(watcher)

-- TCP goes through here, so that connections are told apart without fields: SYN begins a new one.
local tcp_watcher = Proto("polymux_tcp", "polymux connections")
local tcp_dissector = Dissector.get("tcp")

function tcp_watcher.dissector(tvb, pinfo, tree)
  if not pinfo.visited and tvb:len() >= 14 then
    local source = endpoint(pinfo.src, tvb(0, 2):uint())
    local target = endpoint(pinfo.dst, tvb(2, 2):uint())
    local key = source < target and source .. " " .. target or target .. " " .. source
    local flags, sequence = tvb(13, 1):uint(), tvb(4, 4):uint()
    local known = connections[key]
    if band(flags, 18) == 2 and (known == nil or known.sequence ~= sequence) then
      known = { dialer = source, sequence = sequence, syn_packet = pinfo.number }
      connections[key] = known
    elseif known == nil then
      known = {}
      if band(flags, 18) == 18 then known.dialer = target end
      connections[key] = known
    end
    packet_connections[pinfo.number] = known
  end
  return tcp_dissector:call(tvb, pinfo, tree)
end

DissectorTable.get("ip.proto"):set(6, tcp_watcher)

local function first_bytes_mark(data)
  if sub(data, 1, 4) == NERDBANK_MAGIC then return "nerdbank:version=1" end
  local start = sub(data, 1, 3)
  if start == "\146\146\2" or start == "\146\147\2" then return "nerdbank:version=2" end
  if find(data, "^GET [^ ]*/omnistreams/? HTTP/1") then return "omnistreams" end
  if find(data, "/multistream/1.0.0\n", 2, true) == 2 then
    if find(data, "/mplex/", 1, true) then return "mplex:preamble=multistream" end
    if find(data, "/yamux/", 1, true) then return "yamux:preamble=multistream" end
  end
  if #data == 4 then
    local version, length_bits, id_bits = byte(data, 1, 3)
    local total = length_bits + id_bits
    if version == 1 and length_bits > 0 and id_bits > 0 and (total == 14 or total == 30) then
      return "streamux"
    end
  end
  return nil
end

local function heuristic(tvb, pinfo, tree)
  if not polymux.prefs.heuristics or tvb:len() < 4 then return false end
  local known = packet_connections[pinfo.number]
  if known == nil then return false end
  local text = first_bytes_mark(tvb:raw(0, math.min(tvb:len(), 256)))
  if text == nil then return false end
  known.guess = known.guess or text
  polymux.dissector(tvb, pinfo, tree)
  pinfo.conversation = polymux
  return true
end

polymux:register_heuristic("tcp", heuristic)

local function use_preferences()
  local ports = DissectorTable.get("tcp.port")
  for _, range in ipairs(registered_ranges) do ports:remove(range, polymux) end
  registered_ranges, port_protocols = {}, {}
  for _, entry in ipairs(PORT_PREFERENCES) do
    local range = tostring(polymux.prefs[entry.preference])
    if range ~= "" then
      ports:add(range, polymux)
      registered_ranges[#registered_ranges + 1] = range
      for part in string.gmatch(range, "[^,]+") do
        local from, to = string.match(part, "(%d+)%-?(%d*)")
        from = tonumber(from)
        to = tonumber(to) or from
        for port = from, to do port_protocols[port] = entry.text end
      end
    end
  end
end

function polymux.prefs_changed()
  use_preferences()
end

function polymux.init()
  connections, packet_connections, found_frames = {}, {}, {}
  use_preferences()
end

use_preferences()
