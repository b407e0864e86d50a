"""The Lua of ``slow_store``: one walk through a bucket, and how S3, Google Cloud Storage and Azure show a page of it.

S3's ListObjectsV2 and the XML API of Google Cloud Storage are the same here. The answers follow the documentation of
ListObjectsV2, of the JSON API's ``objects.list`` and of Azure's List Blobs.
"""

LOAD = """
local buckets = {}
for line in io.lines("WORK/index") do
  local bucket, key, size, etag, modified = line:match("^(%S+) (%S+) (%S+) (%S+) (%S+)$")
  buckets[bucket] = buckets[bucket] or {}
  table.insert(buckets[bucket], {key = key, size = size, etag = etag, modified = modified})
end
package.loaded.buckets = buckets

local store = {}
package.loaded.store = store

function store.text(value) return type(value) == "string" and value or "" end

-- The index of the first key that is not before
local function first_index(bucket, from, is_before)
  local low, high = from, #bucket + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_before(bucket[middle].key) then low = middle + 1 else high = middle end
  end
  return low
end

-- One page, which begins after the keys that are before: calls the functions for each object and folder; returns
-- their number and the next page's token
function store.walk(bucket, prefix, delimiter, is_before, token, limit, on_object, on_folder)
  local count = 0
  local i = tonumber(token) or first_index(bucket, 1, function(key) return key < prefix or is_before(key) end)
  while i <= #bucket do
    local entry = bucket[i]
    if entry.key:sub(1, #prefix) ~= prefix then break end
    if count == limit then return count, i end
    count = count + 1
    local at = delimiter ~= "" and entry.key:find(delimiter, #prefix + 1, true)
    if at then
      local folder = entry.key:sub(1, at + #delimiter - 1)
      on_folder(folder)
      i = first_index(bucket, i, function(key) return key:sub(1, #folder) <= folder end)
    else
      on_object(entry)
      i = i + 1
    end
  end
  return count, nil
end

-- "2026-01-02T03:04:05.000Z" as the RFC 1123 date that HTTP and Azure use
function store.http_date(modified)
  local year, month, day, hour, minute, second = modified:match("(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)")
  local at = {year = year, month = month, day = day, hour = hour, min = minute, sec = second, isdst = false}
  return ngx.http_time(os.time(at))
end

-- The resource of an object in the JSON API
function store.resource(name, entry)
  return '{"kind":"storage#object","bucket":"' .. name .. '","name":"' .. entry.key .. '","size":"' .. entry.size
    .. '","etag":"' .. entry.etag .. '","generation":"1","metageneration":"1","storageClass":"STANDARD",'
    .. '"contentType":"application/octet-stream","timeCreated":"' .. entry.modified .. '","updated":"'
    .. entry.modified .. '"}'
end

-- The entry of a key
function store.entry(bucket, key)
  local i = first_index(bucket, 1, function(other) return other < key end)
  return bucket[i] and bucket[i].key == key and bucket[i] or nil
end
"""

REQUESTS = """
if ngx.req.get_method() == "DELETE" then ngx.shared.requests:flush_all() end
local function count(kind) return ngx.shared.requests:get(kind) or 0 end
ngx.say(string.format('{"object": %d, "list": %d, "bytes": %d}', count("object"), count("list"), count("bytes")))
"""

LIST_S3 = """
local store = package.loaded.store
local name = ngx.var.uri:match("^/([^/]+)")
local bucket, args = package.loaded.buckets[name], ngx.req.get_uri_args()
ngx.header.content_type = "application/xml"
if not bucket then
  ngx.status = 404
  ngx.say("<Error><Code>NoSuchBucket</Code><Message>There is no such bucket</Message></Error>")
  return
end
local text, out = store.text, {}
local prefix, limit = text(args.prefix), math.min(tonumber(args["max-keys"]) or 1000, 1000)
local after = text(args["start-after"])
local count, next_index = store.walk(
  bucket, prefix, text(args.delimiter), function(key) return after ~= "" and key <= after end,
  args["continuation-token"], limit,
  function(entry)
    out[#out + 1] = "<Contents><Key>" .. entry.key .. "</Key><LastModified>" .. entry.modified
      .. "</LastModified><ETag>&quot;" .. entry.etag .. "&quot;</ETag><Size>"
      .. entry.size .. "</Size><StorageClass>STANDARD</StorageClass></Contents>"
  end,
  function(folder) out[#out + 1] = "<CommonPrefixes><Prefix>" .. folder .. "</Prefix></CommonPrefixes>" end
)
ngx.print(
  '<?xml version="1.0" encoding="UTF-8"?>',
  '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
  "<Name>", name, "</Name><Prefix>", prefix, "</Prefix><KeyCount>", count, "</KeyCount><MaxKeys>", limit, "</MaxKeys>",
  "<IsTruncated>", tostring(next_index ~= nil), "</IsTruncated>",
  next_index and "<NextContinuationToken>" .. next_index .. "</NextContinuationToken>" or "",
  table.concat(out), "</ListBucketResult>"
)
"""

LIST_JSON = """
local store = package.loaded.store
local name = ngx.var.uri:match("/b/([^/]+)")
local bucket, args = package.loaded.buckets[name], ngx.req.get_uri_args()
ngx.header.content_type = "application/json"
if not bucket then
  ngx.status = 404
  ngx.say('{"error": {"code": 404, "message": "The specified bucket does not exist."}}')
  return
end
local text, items, folders = store.text, {}, {}
local start = text(args.startOffset)
if args.endOffset then ngx.exit(501) end
local _, next_index = store.walk(
  bucket, text(args.prefix), text(args.delimiter), function(key) return key < start end,
  args.pageToken, math.min(tonumber(args.maxResults) or 1000, 1000),
  function(entry) items[#items + 1] = store.resource(name, entry) end,
  function(folder) folders[#folders + 1] = '"' .. folder .. '"' end
)
ngx.print(
  '{"kind":"storage#objects"',
  next_index and ',"nextPageToken":"' .. next_index .. '"' or "",
  #folders > 0 and ',"prefixes":[' .. table.concat(folders, ",") .. "]" or "",
  #items > 0 and ',"items":[' .. table.concat(items, ",") .. "]" or "",
  "}"
)
"""

# Metadata of an object, unless its bytes are asked for, which nginx sends itself
OBJECT_JSON = """
local args = ngx.req.get_uri_args()
ngx.shared.requests:incr("object", 1, 0)
ngx.sleep(LATENCY)
if args.alt == "media" or ngx.var.uri:sub(1, 9) == "/download" then return end
local store = package.loaded.store
local name, key = ngx.var.uri:match("/b/([^/]+)/o/(.+)$")
local entry = package.loaded.buckets[name] and store.entry(package.loaded.buckets[name], key)
ngx.header.content_type = "application/json"
if not entry then
  ngx.status = 404
  ngx.say('{"error": {"code": 404, "message": "No such object"}}')
  return ngx.exit(404)
end
ngx.print(store.resource(name, entry))
return ngx.exit(200)
"""

LIST_AZURE = """
local store = package.loaded.store
local name = ngx.var.uri:match("^/[^/]+/([^/]+)")
local bucket, args = package.loaded.buckets[name], ngx.req.get_uri_args()
ngx.header.content_type = "application/xml"
ngx.header["x-ms-version"] = "2021-12-02"
if not bucket then
  ngx.status = 404
  ngx.header["x-ms-error-code"] = "ContainerNotFound"
  ngx.say("<Error><Code>ContainerNotFound</Code><Message>There is no such container</Message></Error>")
  return
end
if args.comp ~= "list" then return ngx.exit(200) end  -- properties of the container
local text, out = store.text, {}
local prefix, delimiter = text(args.prefix), text(args.delimiter)
local limit = math.min(tonumber(args.maxresults) or 5000, 5000)
local start = text(args.startFrom)
local _, next_index = store.walk(
  bucket, prefix, delimiter, function(key) return key < start end, text(args.marker), limit,
  function(entry)
    out[#out + 1] = "<Blob><Name>" .. entry.key .. "</Name><Properties><Creation-Time>"
      .. store.http_date(entry.modified) .. "</Creation-Time><Last-Modified>" .. store.http_date(entry.modified)
      .. "</Last-Modified><Etag>" .. entry.etag .. "</Etag><Content-Length>" .. entry.size
      .. "</Content-Length><Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType>"
      .. "<AccessTier>Hot</AccessTier><ServerEncrypted>true</ServerEncrypted></Properties></Blob>"
  end,
  function(folder) out[#out + 1] = "<BlobPrefix><Name>" .. folder .. "</Name></BlobPrefix>" end
)
ngx.print(
  '<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="', ngx.var.scheme, "://",
  ngx.var.http_host, '/devstoreaccount1/" ContainerName="', name, '"><Prefix>', prefix, "</Prefix><MaxResults>",
  limit, "</MaxResults><Blobs>", table.concat(out), "</Blobs><NextMarker>", next_index or "", "</NextMarker>",
  "</EnumerationResults>"
)
"""

OBJECT_AZURE = """
ngx.shared.requests:incr("object", 1, 0)
ngx.sleep(LATENCY)
local range = ngx.var.http_x_ms_range
if range then ngx.req.set_header("Range", range) end
ngx.header["x-ms-blob-type"] = "BlockBlob"
ngx.header["x-ms-version"] = "2021-12-02"
"""

SCRIPTS = {
    "load": LOAD,
    "requests": REQUESTS,
    "list": LIST_S3,
    "list_json": LIST_JSON,
    "object_json": OBJECT_JSON,
    "list_azure": LIST_AZURE,
    "object_azure": OBJECT_AZURE,
}
