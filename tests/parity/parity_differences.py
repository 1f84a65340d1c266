"""Every way in which this package differs from the cuDNN frontend, with its reason.

A row is a pattern (as of shell globs) of what `compare` says, and the reason. A difference that no
row matches fails the tests, and so does a row that matches none. docs/parity.md is made from here.
"""

DIFFERENCES: tuple[tuple[str, str, str], ...] = (
    (
        "Planning and running",
        "graph: {*_cuda_graph,get_cuda_graph_retention}: absent",
        "they fill in a CUDA graph from a plan of cuDNN's backend; capture the stream of `execute`",
    ),
    (
        "Planning and running",
        "call: {build,build_plans}.ctx: absent",
        "the frontend's inner parts pass a stream on by it; a plan here is compiled for a target",
    ),
    (
        "Planning and running",
        "call: build_plans.policy: only here",
        "by position or keyword, as there, where the signature does not show it",
    ),
    (
        "Planning and running",
        "call: execute_plan_at_index.override_*: only here",
        "the same",
    ),
    (
        "Planning and running",
        "call: execute*.symbols: only here",
        "values of symbolic extents, for calls that bind bare addresses",
    ),
    (
        "Planning and running",
        "module: {create_device_properties,DeviceInfo,create_kernel_cache,knob}: absent",
        "a graph is built for a target by name, and stores are the cache of kernels; `pygraph` "
        "takes these arguments and ignores them",
    ),
    (
        "Planning and running",
        "module: {get_last_error_string,sdpa_capabilities}: absent",
        "they ask the compiled cuDNN, which is not loaded; an error's text is in the exception",
    ),
    (
        "Kernels",
        "kernel: *: absent",
        "functions and modules that launch kernels of the frontend's own; they build no graph",
    ),
    (
        "Kernels",
        "module: {*causal_conv1d_*,gnn_*,frost,engines,sdpa}: absent",
        "the same, compiled into the frontend",
    ),
    (
        "Inner parts",
        "module: {graph_types,nodes,NodeType}: absent",
        "modules of the frontend's graph, and its numbers of node types; `node.op` is the "
        "method's name, `inspect()` gives the type's",
    ),
    (
        "Inner parts",
        "module: {is_windows,load_cudnn,module_name,symbol_name,symbols_to_import}: absent",
        "left over from how the frontend loads its compiled part",
    ),
    (
        "Inner parts",
        "tensor: {owner,validate}: absent",
        "a tensor is checked with its graph, by `validate` of the graph",
    ),
    (
        "Arguments",
        "call: __init__.name: *",
        "a graph without a name takes that of its file",
    ),
    (
        "Arguments",
        "call: __init__.symbols: only here",
        "the ranges of symbolic extents, which the frontend does not have",
    ),
    (
        "Arguments",
        "call: __init__.target: only here",
        "what the graph is planned for; the current CUDA device says if nothing else does",
    ),
    (
        "Arguments",
        "call: tensor.{pass_by_value,scalar_type}: only here",
        "the frontend takes them too, among keywords that its signature does not name",
    ),
    (
        "Arguments",
        "line: pygraph(sm_count=): taken, here raises cudnnGraphNotSupportedError",
        "how many multiprocessors a plan may use is part of the target that it is built for",
    ),
    (
        "Arguments",
        "call: __init__.engines: only here",
        "whose plans are listed; cuDNN's own only where a program or the user asks for them",
    ),
    (
        "Arguments",
        "call: tensor_scalar.scalar_type: required, here default 'RUNTIME_PARAM'",
        "leniency",
    ),
    (
        "Arguments",
        "op: {batchnorm.in_running_*,batchnorm.momentum,rmsnorm_backward.has_dbias,"
        "sdpa_mxfp8.generate_stats}: required, here default *",
        "the compiled method wants them, the frontend's Python builder lets them be left out with "
        "this meaning, and so do we",
    ),
    (
        "Arguments",
        "op: {sdpa,sdpa_fp8}.is_inference: default None, here default True",
        "what None means to the frontend: no statistics",
    ),
    (
        "Arguments",
        "op: sdpa_mxfp8.is_inference: only here",
        "the frontend's Python builder takes it, and decides by it whether Stats exists",
    ),
    (
        "Arguments",
        "op: slice.slices: default None, here required",
        "a slice of nothing is no slice",
    ),
    (
        "Arguments",
        "answer: {sdpa,sdpa_backward,sdpa_fp8,sdpa_fp8_backward,sdpa_mxfp8,sdpa_mxfp8_backward}: "
        "no_such_keyword: raises None, here TypeError",
        "a keyword that the op does not have is refused when it is given; the frontend's attention "
        "builders take any, and fail when the graph is planned",
    ),
    (
        "Inspection",
        "line: {tensor,tensor_scalar}.name: *, here ",
        "a tensor that is given no name has none: one by its place in the program would change "
        "with the program, and two programs of one graph would show other names",
    ),
    (
        "Inspection",
        "line: tensor_scalar.dim: *1, 1, 1, 1], here *1]",
        "a number adds no axes to what it is combined with; it is one element in both",
    ),
    (
        "Inspection",
        "line: node.{params,node_type}: *, here absent",
        "`node.attrs` and `node.op`; `inspect()` has the node type",
    ),
    (
        "Inspection",
        "line: inspect().{context,nodes,nodes.inputs,tensors,tensors.fields}: *",
        "tensors by uid, since names may be empty or shared; data types by name; and the "
        "intermediate type, the op's name and the tensors' names besides",
    ),
    (
        "Inference",
        "answer: *: built: extents are known only here",
        "an op's result has its extents at once where the operands have theirs; the frontend's "
        "matmul and pointwise ops infer them in `validate`",
    ),
    (
        "Inference",
        "answer: {concatenate,sdpa_mxfp8_backward}: validated: extents are known only here",
        "the frontend's Python graph leaves them to cuDNN",
    ),
    (
        "Inference",
        "answer: {conv_fprop,conv_dgrad,conv_wgrad,batchnorm,batchnorm_backward,instancenorm,"
        "instancenorm_backward,genstats,reduction,reshape}: {built,validated}: "
        "strides row-major, here channels last",
        "channels last, as cuDNN gives these results when a graph is lowered, and as the "
        "frontend's tensors have it from then on; until then its Python graph has provisional "
        "row-major ones",
    ),
    (
        "Inference",
        "answer: block_scale_quantize: {built,validated}: strides row-major, here of another order",
        "with `transpose` packed along the axis of the blocks, as when lowered; provisional there "
        "likewise",
    ),
    (
        "Inference",
        "answer: {slice,transpose}: {built,validated}: strides row-major, here of another order",
        "those of a view of the input, as when lowered; provisional there likewise",
    ),
    (
        "Inference",
        "answer: moe_grouped_matmul_bwd: {built,validated}: strides row-major, here channels last",
        "the axis of the token's features innermost, as when lowered; provisional there likewise",
    ),
    (
        "Inference",
        "answer: *: validated: data_type is FLOAT only here",
        "of a graph that names no types: what the frontend gives virtual tensors and arithmetic "
        "when it lowers a graph, known here as soon as it is validated",
    ),
    (
        "Inference",
        "answer: *: node has compute_data_type None, here FLOAT",
        "likewise",
    ),
    (
        "Inference",
        "answer: {concatenate,reshape}: node has compute_data_type FLOAT, here None",
        "they do no arithmetic; their builders take the argument and ignore it",
    ),
)


def patterns(text: str) -> list[str]:
    """The globs of a row: its ``{a,b}`` groups written out."""
    head, brace, rest = text.partition("{")
    if not brace:
        return [text]
    inner, _, tail = rest.partition("}")
    return [f"{head}{each}{end}" for each in inner.split(",") for end in patterns(tail)]
