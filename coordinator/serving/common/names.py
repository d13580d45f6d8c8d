"""Names that the HTTP server and its clients share."""

JSON = "application/json"
PNG = "image/png"
JPEG = "image/jpeg"
NPZ = "application/x-npz"
OCTETS = "application/octet-stream"
MULTIPART = "multipart/form-data"

# The name of the file in a multipart body.
IMAGE_PART = "image"

# Answers that are not JSON have timing and plan in this header, in the form of the JSON.
ANSWER_HEADER = "Imbrex-Answer"
REQUEST_ID_HEADER = "X-Request-Id"
# The client's own id of a request that it may send again.
ID_HEADER = "Idempotency-Key"
