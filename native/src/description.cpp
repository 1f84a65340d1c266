#include "description.h"

namespace cudnn_aot {

namespace py = pybind11;

namespace {

py::list IntegerList(const int64_t* values, int count) {
  py::list out;
  for (int i = 0; i < count; ++i) out.append(values[i]);
  return out;
}

py::dict DescribeView(const DLTensor& view) {
  py::dict out;
  out["address"] = reinterpret_cast<uintptr_t>(view.data);
  out["dtype"] = Describe(view.dtype);
  out["dim"] = IntegerList(view.shape, view.ndim);
  out["stride"] = IntegerList(view.strides, view.ndim);
  return out;
}

}  // namespace

py::dict DescribeCall(const Plan& plan, const Call& call, Frame* frame) {
  const Table& table = plan.table();
  const Branch& branch = table.branches[frame->branch];
  py::dict symbols;
  for (size_t i = 0; i < table.symbols.size(); ++i) {
    symbols[table.symbol_names[i].c_str()] = frame->symbols[i];
  }
  py::dict operands;
  py::list graph_described;
  py::list overridden;
  for (size_t i = 0; i < table.operands.size(); ++i) {
    const Operand& operand = table.operands[i];
    py::dict item;
    if (operand.kind == Operand::Kind::kScalar) {
      if (operand.dtype->is_float()) {
        item["value"] = frame->scalars[i].number;
      } else {
        item["value"] = frame->scalars[i].integer;
      }
    } else {
      const Buffer& buffer = call.buffers[i];
      const Slot& slot = frame->slots[i];
      bool observed = buffer.kind == Buffer::Kind::kTensor;
      item["present"] = slot.present;
      item["address"] = reinterpret_cast<uintptr_t>(slot.data);
      item["nbytes"] = slot.nbytes;
      item["observed_bytes"] = observed ? slot.nbytes : -1;
      DLDevice device = observed ? buffer.device : DLDevice{-1, -1};
      item["observed_device"] = py::make_tuple(device.device_type, device.device_id);
      if (slot.graph_described) graph_described.append(operand.uid);
      item["dim"] = IntegerList(frame->dims + operand.base, operand.rank);
      item["stride"] = IntegerList(frame->strides + operand.base, operand.rank);
    }
    operands[py::int_(operand.uid)] = item;
  }
  for (int i = 0; i < call.num_overrides; ++i) {
    overridden.append(table.operands[call.overrides[i].operand].uid);
  }
  py::list steps;
  for (const Step& step : branch.steps) {
    py::dict item;
    if (step.kind == Step::Kind::kFill) {
      item["step"] = "fill";
      item["bytes"] = table.pool.Eval(step.bytes, frame->env());
    } else if (step.kind == Step::Kind::kBackend) {
      item["step"] = "backend";
      item["blob"] = step.blob;
      py::list uids;
      for (int index : step.operands) uids.append(table.operands[index].uid);
      item["uids"] = uids;
    } else {
      item["step"] = "kernel";
      item["kernel"] = step.kernel;
      plan.BuildArgs(branch, step, true, frame);
      py::list args;
      for (size_t i = 0; i < step.args.size(); ++i) {
        const FfiAny& arg = frame->args[i];
        if (arg.type_index == kFfiTensorPtr) {
          args.append(DescribeView(*static_cast<const DLTensor*>(arg.v_ptr)));
        } else if (arg.type_index == kFfiInt) {
          args.append(arg.v_int64);
        } else if (arg.type_index == kFfiFloat) {
          args.append(arg.v_float64);
        } else {
          args.append(py::none());
        }
      }
      item["args"] = args;
    }
    steps.append(item);
  }
  py::dict out;
  out["branch"] = branch.name;
  out["symbols"] = symbols;
  out["operands"] = operands;
  out["graph_described"] = graph_described;
  out["overridden"] = overridden;
  out["workspace_bytes"] = frame->workspace_bytes;
  out["steps"] = steps;
  return out;
}

}  // namespace cudnn_aot
