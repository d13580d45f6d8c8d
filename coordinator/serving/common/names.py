"""Names that server and clients of the HTTP interface share."""

JSON = "application/json"
PNG = "image/png"
JPEG = "image/jpeg"
NPZ = "application/x-npz"
OCTETS = "application/octet-stream"
MULTIPART = "multipart/form-data"

# The file of a multipart body.
IMAGE_PART = "image"

# Answers that are no JSON tell how they came about in this header, as the JSON would.
ANSWER_HEADER = "Imbrex-Answer"
REQUEST_ID_HEADER = "X-Request-Id"
# Paths of its interface begin so.
DEEPSTACK = ("/v1/vision", "/v1/status", "/v1/server")
