from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HelloRequest(_message.Message):
    __slots__ = ("protocol", "version", "sender", "sent_s", "members", "coordinator", "incarnation", "generation", "coordinators")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    sender: str
    sent_s: float
    members: _containers.RepeatedScalarFieldContainer[str]
    coordinator: str
    incarnation: str
    generation: int
    coordinators: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., sender: _Optional[str] = ..., sent_s: _Optional[float] = ..., members: _Optional[_Iterable[str]] = ..., coordinator: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ..., coordinators: _Optional[_Iterable[str]] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol", "version", "facts", "received_s", "counters", "resident_bytes", "coordinators", "generation", "data_port")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_S_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    facts: DeviceFacts
    received_s: float
    counters: _containers.ScalarMap[str, int]
    resident_bytes: int
    coordinators: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    data_port: int
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., facts: _Optional[_Union[DeviceFacts, _Mapping]] = ..., received_s: _Optional[float] = ..., counters: _Optional[_Mapping[str, int]] = ..., resident_bytes: _Optional[int] = ..., coordinators: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ..., data_port: _Optional[int] = ...) -> None: ...

class DeviceFacts(_message.Message):
    __slots__ = ("id", "name", "machine", "cpu", "cores", "mhz_now", "mhz_max", "memory_bytes", "pace", "runtime", "boot_id", "threads", "celsius", "throttled", "concurrency", "engine", "processor", "gflops", "tolerance", "engine_programs", "speedup", "refused", "limits", "engines", "kept")
    class EngineShare(_message.Message):
        __slots__ = ("name", "programs", "speedup")
        NAME_FIELD_NUMBER: _ClassVar[int]
        PROGRAMS_FIELD_NUMBER: _ClassVar[int]
        SPEEDUP_FIELD_NUMBER: _ClassVar[int]
        name: str
        programs: int
        speedup: float
        def __init__(self, name: _Optional[str] = ..., programs: _Optional[int] = ..., speedup: _Optional[float] = ...) -> None: ...
    class KeptPrograms(_message.Message):
        __slots__ = ("why", "programs", "is_lacking")
        WHY_FIELD_NUMBER: _ClassVar[int]
        PROGRAMS_FIELD_NUMBER: _ClassVar[int]
        IS_LACKING_FIELD_NUMBER: _ClassVar[int]
        why: str
        programs: int
        is_lacking: bool
        def __init__(self, why: _Optional[str] = ..., programs: _Optional[int] = ..., is_lacking: _Optional[bool] = ...) -> None: ...
    class Limits(_message.Message):
        __slots__ = ("networks", "shapes", "dtypes")
        NETWORKS_FIELD_NUMBER: _ClassVar[int]
        SHAPES_FIELD_NUMBER: _ClassVar[int]
        DTYPES_FIELD_NUMBER: _ClassVar[int]
        networks: _containers.RepeatedScalarFieldContainer[str]
        shapes: _containers.RepeatedScalarFieldContainer[str]
        dtypes: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, networks: _Optional[_Iterable[str]] = ..., shapes: _Optional[_Iterable[str]] = ..., dtypes: _Optional[_Iterable[str]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MHZ_NOW_FIELD_NUMBER: _ClassVar[int]
    MHZ_MAX_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    CELSIUS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    GFLOPS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    machine: str
    cpu: str
    cores: int
    mhz_now: float
    mhz_max: float
    memory_bytes: int
    pace: float
    runtime: str
    boot_id: str
    threads: int
    celsius: float
    throttled: bool
    concurrency: int
    engine: str
    processor: str
    gflops: float
    tolerance: float
    engine_programs: int
    speedup: float
    refused: str
    limits: DeviceFacts.Limits
    engines: _containers.RepeatedCompositeFieldContainer[DeviceFacts.EngineShare]
    kept: _containers.RepeatedCompositeFieldContainer[DeviceFacts.KeptPrograms]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., machine: _Optional[str] = ..., cpu: _Optional[str] = ..., cores: _Optional[int] = ..., mhz_now: _Optional[float] = ..., mhz_max: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., pace: _Optional[float] = ..., runtime: _Optional[str] = ..., boot_id: _Optional[str] = ..., threads: _Optional[int] = ..., celsius: _Optional[float] = ..., throttled: _Optional[bool] = ..., concurrency: _Optional[int] = ..., engine: _Optional[str] = ..., processor: _Optional[str] = ..., gflops: _Optional[float] = ..., tolerance: _Optional[float] = ..., engine_programs: _Optional[int] = ..., speedup: _Optional[float] = ..., refused: _Optional[str] = ..., limits: _Optional[_Union[DeviceFacts.Limits, _Mapping]] = ..., engines: _Optional[_Iterable[_Union[DeviceFacts.EngineShare, _Mapping]]] = ..., kept: _Optional[_Iterable[_Union[DeviceFacts.KeptPrograms, _Mapping]]] = ...) -> None: ...

class ExamineRequest(_message.Message):
    __slots__ = ("neighbours",)
    class Neighbour(_message.Message):
        __slots__ = ("device", "address")
        DEVICE_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        device: str
        address: str
        def __init__(self, device: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    neighbours: _containers.RepeatedCompositeFieldContainer[ExamineRequest.Neighbour]
    def __init__(self, neighbours: _Optional[_Iterable[_Union[ExamineRequest.Neighbour, _Mapping]]] = ...) -> None: ...

class ExamineReply(_message.Message):
    __slots__ = ("condition", "reached")
    class Reached(_message.Message):
        __slots__ = ("device", "error")
        DEVICE_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        device: str
        error: str
        def __init__(self, device: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    condition: Condition
    reached: _containers.RepeatedCompositeFieldContainer[ExamineReply.Reached]
    def __init__(self, condition: _Optional[_Union[Condition, _Mapping]] = ..., reached: _Optional[_Iterable[_Union[ExamineReply.Reached, _Mapping]]] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("clock_s", "memory_bytes", "memory_available_bytes", "disk_bytes", "disk_free_bytes", "power_flags", "governor", "governor_driver", "interfaces", "announced", "up_s", "segments_sent", "segments_resent")
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_FLAGS_FIELD_NUMBER: _ClassVar[int]
    GOVERNOR_FIELD_NUMBER: _ClassVar[int]
    GOVERNOR_DRIVER_FIELD_NUMBER: _ClassVar[int]
    INTERFACES_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    UP_S_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_SENT_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_RESENT_FIELD_NUMBER: _ClassVar[int]
    clock_s: float
    memory_bytes: int
    memory_available_bytes: int
    disk_bytes: int
    disk_free_bytes: int
    power_flags: int
    governor: str
    governor_driver: str
    interfaces: _containers.RepeatedCompositeFieldContainer[Interface]
    announced: bool
    up_s: float
    segments_sent: int
    segments_resent: int
    def __init__(self, clock_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_available_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., power_flags: _Optional[int] = ..., governor: _Optional[str] = ..., governor_driver: _Optional[str] = ..., interfaces: _Optional[_Iterable[_Union[Interface, _Mapping]]] = ..., announced: _Optional[bool] = ..., up_s: _Optional[float] = ..., segments_sent: _Optional[int] = ..., segments_resent: _Optional[int] = ...) -> None: ...

class Interface(_message.Message):
    __slots__ = ("name", "addresses", "wireless", "connected", "mbps", "port_mbps", "saves_power", "carrier_changes", "saves_energy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    WIRELESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MBPS_FIELD_NUMBER: _ClassVar[int]
    PORT_MBPS_FIELD_NUMBER: _ClassVar[int]
    SAVES_POWER_FIELD_NUMBER: _ClassVar[int]
    CARRIER_CHANGES_FIELD_NUMBER: _ClassVar[int]
    SAVES_ENERGY_FIELD_NUMBER: _ClassVar[int]
    name: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    wireless: bool
    connected: bool
    mbps: int
    port_mbps: int
    saves_power: bool
    carrier_changes: int
    saves_energy: bool
    def __init__(self, name: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., wireless: _Optional[bool] = ..., connected: _Optional[bool] = ..., mbps: _Optional[int] = ..., port_mbps: _Optional[int] = ..., saves_power: _Optional[bool] = ..., carrier_changes: _Optional[int] = ..., saves_energy: _Optional[bool] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("signing_request",)
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    signing_request: bytes
    def __init__(self, signing_request: _Optional[bytes] = ...) -> None: ...

class AuthorityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuthorityReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class EnrolRequest(_message.Message):
    __slots__ = ("protocol", "invitation", "signing_request", "device", "name", "coordinator")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    INVITATION_FIELD_NUMBER: _ClassVar[int]
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    invitation: str
    signing_request: bytes
    device: str
    name: str
    coordinator: bool
    def __init__(self, protocol: _Optional[int] = ..., invitation: _Optional[str] = ..., signing_request: _Optional[bytes] = ..., device: _Optional[str] = ..., name: _Optional[str] = ..., coordinator: _Optional[bool] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("certificate", "state")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    state: str
    def __init__(self, certificate: _Optional[bytes] = ..., state: _Optional[str] = ...) -> None: ...

class BlobQuery(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sha256: _Optional[_Iterable[str]] = ...) -> None: ...

class BlobStatus(_message.Message):
    __slots__ = ("missing",)
    class Blob(_message.Message):
        __slots__ = ("sha256", "have_bytes")
        SHA256_FIELD_NUMBER: _ClassVar[int]
        HAVE_BYTES_FIELD_NUMBER: _ClassVar[int]
        sha256: str
        have_bytes: int
        def __init__(self, sha256: _Optional[str] = ..., have_bytes: _Optional[int] = ...) -> None: ...
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedCompositeFieldContainer[BlobStatus.Blob]
    def __init__(self, missing: _Optional[_Iterable[_Union[BlobStatus.Blob, _Mapping]]] = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("sha256", "offset", "total_bytes", "data")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    offset: int
    total_bytes: int
    data: bytes
    def __init__(self, sha256: _Optional[str] = ..., offset: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class FileQuery(_message.Message):
    __slots__ = ("protocol", "sha256", "offset")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    sha256: str
    offset: int
    def __init__(self, protocol: _Optional[int] = ..., sha256: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("sha256", "graph", "weights")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    graph: bytes
    weights: _containers.RepeatedCompositeFieldContainer[Weight]
    def __init__(self, sha256: _Optional[str] = ..., graph: _Optional[bytes] = ..., weights: _Optional[_Iterable[_Union[Weight, _Mapping]]] = ...) -> None: ...

class Weight(_message.Message):
    __slots__ = ("name", "sha256", "data_type", "dims")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    data_type: int
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ..., data_type: _Optional[int] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("programs",)
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[Program]
    def __init__(self, programs: _Optional[_Iterable[_Union[Program, _Mapping]]] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("programs", "missing")
    class Prepared(_message.Message):
        __slots__ = ("program", "seconds", "error")
        PROGRAM_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        program: str
        seconds: float
        error: str
        def __init__(self, program: _Optional[str] = ..., seconds: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[PrepareReply.Prepared]
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, programs: _Optional[_Iterable[_Union[PrepareReply.Prepared, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class RetainRequest(_message.Message):
    __slots__ = ("programs",)
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, programs: _Optional[_Iterable[str]] = ...) -> None: ...

class RetainReply(_message.Message):
    __slots__ = ("resident_bytes",)
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    resident_bytes: int
    def __init__(self, resident_bytes: _Optional[int] = ...) -> None: ...

class MeasureRequest(_message.Message):
    __slots__ = ("program", "inputs", "repeats", "at_most_s", "threads")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_S_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    program: Program
    inputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    repeats: int
    at_most_s: float
    threads: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, program: _Optional[_Union[Program, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., repeats: _Optional[int] = ..., at_most_s: _Optional[float] = ..., threads: _Optional[_Iterable[int]] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("tensor", "data_type", "dims")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    data_type: int
    dims: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensor: _Optional[str] = ..., data_type: _Optional[int] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class MeasureReply(_message.Message):
    __slots__ = ("seconds", "threads", "resident_bytes", "engines")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    seconds: _containers.RepeatedScalarFieldContainer[float]
    threads: int
    resident_bytes: int
    engines: _containers.RepeatedCompositeFieldContainer[EngineSeconds]
    def __init__(self, seconds: _Optional[_Iterable[float]] = ..., threads: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., engines: _Optional[_Iterable[_Union[EngineSeconds, _Mapping]]] = ...) -> None: ...

class EngineSeconds(_message.Message):
    __slots__ = ("engine", "seconds")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    engine: str
    seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, engine: _Optional[str] = ..., seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Item]
    def __init__(self, items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("task", "tensor", "done", "failed", "release", "cancel", "ping", "pong", "resend", "show")
    TASK_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    RESEND_FIELD_NUMBER: _ClassVar[int]
    SHOW_FIELD_NUMBER: _ClassVar[int]
    task: Task
    tensor: Tensor
    done: TaskDone
    failed: TaskFailed
    release: Release
    cancel: Cancel
    ping: Ping
    pong: Ping
    resend: Resend
    show: Show
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., done: _Optional[_Union[TaskDone, _Mapping]] = ..., failed: _Optional[_Union[TaskFailed, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Ping, _Mapping]] = ..., resend: _Optional[_Union[Resend, _Mapping]] = ..., show: _Optional[_Union[Show, _Mapping]] = ...) -> None: ...

class Box(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[int]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("request", "plan_version", "task", "attempt", "program", "inputs", "outputs", "sources_named", "any_values")
    class Input(_message.Message):
        __slots__ = ("tensor", "box", "data_type", "sources")
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        BOX_FIELD_NUMBER: _ClassVar[int]
        DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
        SOURCES_FIELD_NUMBER: _ClassVar[int]
        tensor: str
        box: Box
        data_type: int
        sources: _containers.RepeatedCompositeFieldContainer[Task.Source]
        def __init__(self, tensor: _Optional[str] = ..., box: _Optional[_Union[Box, _Mapping]] = ..., data_type: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Task.Source, _Mapping]]] = ...) -> None: ...
    class Source(_message.Message):
        __slots__ = ("device", "box")
        DEVICE_FIELD_NUMBER: _ClassVar[int]
        BOX_FIELD_NUMBER: _ClassVar[int]
        device: str
        box: Box
        def __init__(self, device: _Optional[str] = ..., box: _Optional[_Union[Box, _Mapping]] = ...) -> None: ...
    class Output(_message.Message):
        __slots__ = ("tensor", "box", "yields", "to", "address", "to_task", "to_attempt", "selection", "dynamic")
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        BOX_FIELD_NUMBER: _ClassVar[int]
        YIELDS_FIELD_NUMBER: _ClassVar[int]
        TO_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        TO_TASK_FIELD_NUMBER: _ClassVar[int]
        TO_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        SELECTION_FIELD_NUMBER: _ClassVar[int]
        DYNAMIC_FIELD_NUMBER: _ClassVar[int]
        tensor: str
        box: Box
        yields: Box
        to: str
        address: str
        to_task: int
        to_attempt: int
        selection: Selection
        dynamic: bool
        def __init__(self, tensor: _Optional[str] = ..., box: _Optional[_Union[Box, _Mapping]] = ..., yields: _Optional[_Union[Box, _Mapping]] = ..., to: _Optional[str] = ..., address: _Optional[str] = ..., to_task: _Optional[int] = ..., to_attempt: _Optional[int] = ..., selection: _Optional[_Union[Selection, _Mapping]] = ..., dynamic: _Optional[bool] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_NAMED_FIELD_NUMBER: _ClassVar[int]
    ANY_VALUES_FIELD_NUMBER: _ClassVar[int]
    request: str
    plan_version: int
    task: int
    attempt: int
    program: str
    inputs: _containers.RepeatedCompositeFieldContainer[Task.Input]
    outputs: _containers.RepeatedCompositeFieldContainer[Task.Output]
    sources_named: bool
    any_values: bool
    def __init__(self, request: _Optional[str] = ..., plan_version: _Optional[int] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., program: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Task.Input, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Task.Output, _Mapping]]] = ..., sources_named: _Optional[bool] = ..., any_values: _Optional[bool] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("axis", "across", "start", "stop", "least", "factor")
    AXIS_FIELD_NUMBER: _ClassVar[int]
    ACROSS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    axis: int
    across: int
    start: int
    stop: int
    least: float
    factor: int
    def __init__(self, axis: _Optional[int] = ..., across: _Optional[int] = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., least: _Optional[float] = ..., factor: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("request", "plan_version", "task", "attempt", "tensor", "box", "data_type", "payload_bytes", "kept", "shape")
    class Kept(_message.Message):
        __slots__ = ("axis", "entries")
        AXIS_FIELD_NUMBER: _ClassVar[int]
        ENTRIES_FIELD_NUMBER: _ClassVar[int]
        axis: int
        entries: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, axis: _Optional[int] = ..., entries: _Optional[_Iterable[int]] = ...) -> None: ...
    class Shape(_message.Message):
        __slots__ = ("dims",)
        DIMS_FIELD_NUMBER: _ClassVar[int]
        dims: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, dims: _Optional[_Iterable[int]] = ...) -> None: ...
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    request: str
    plan_version: int
    task: int
    attempt: int
    tensor: str
    box: Box
    data_type: int
    payload_bytes: int
    kept: Tensor.Kept
    shape: Tensor.Shape
    def __init__(self, request: _Optional[str] = ..., plan_version: _Optional[int] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., tensor: _Optional[str] = ..., box: _Optional[_Union[Box, _Mapping]] = ..., data_type: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., kept: _Optional[_Union[Tensor.Kept, _Mapping]] = ..., shape: _Optional[_Union[Tensor.Shape, _Mapping]] = ...) -> None: ...

class TaskDone(_message.Message):
    __slots__ = ("request", "task", "attempt", "ready_s", "start_s", "stop_s", "peer_bytes", "described_last")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    READY_S_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    STOP_S_FIELD_NUMBER: _ClassVar[int]
    PEER_BYTES_FIELD_NUMBER: _ClassVar[int]
    DESCRIBED_LAST_FIELD_NUMBER: _ClassVar[int]
    request: str
    task: int
    attempt: int
    ready_s: float
    start_s: float
    stop_s: float
    peer_bytes: int
    described_last: bool
    def __init__(self, request: _Optional[str] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., ready_s: _Optional[float] = ..., start_s: _Optional[float] = ..., stop_s: _Optional[float] = ..., peer_bytes: _Optional[int] = ..., described_last: _Optional[bool] = ...) -> None: ...

class TaskFailed(_message.Message):
    __slots__ = ("request", "task", "attempt", "code", "message")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request: str
    task: int
    attempt: int
    code: str
    message: str
    def __init__(self, request: _Optional[str] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, requests: _Optional[_Iterable[str]] = ...) -> None: ...

class Resend(_message.Message):
    __slots__ = ("request", "plan_version", "task", "attempt", "outputs")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    request: str
    plan_version: int
    task: int
    attempt: int
    outputs: _containers.RepeatedCompositeFieldContainer[Task.Output]
    def __init__(self, request: _Optional[str] = ..., plan_version: _Optional[int] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[Task.Output, _Mapping]]] = ...) -> None: ...

class Show(_message.Message):
    __slots__ = ("request", "plan_version", "task", "attempt", "tensor", "box")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    request: str
    plan_version: int
    task: int
    attempt: int
    tensor: str
    box: Box
    def __init__(self, request: _Optional[str] = ..., plan_version: _Optional[int] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., tensor: _Optional[str] = ..., box: _Optional[_Union[Box, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request", "task", "attempt")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request: str
    task: int
    attempt: int
    def __init__(self, request: _Optional[str] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number", "sent_s", "received_s", "payload_bytes", "reply_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SENT_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_S_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLY_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    sent_s: float
    received_s: float
    payload_bytes: int
    reply_bytes: int
    def __init__(self, number: _Optional[int] = ..., sent_s: _Optional[float] = ..., received_s: _Optional[float] = ..., payload_bytes: _Optional[int] = ..., reply_bytes: _Optional[int] = ...) -> None: ...
