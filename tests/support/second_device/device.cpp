// Eight devices beside the CPU, of ordinary memory, on which everything is computed by the CPU's own kernels. Like GPUs
// they refuse operations on tensors of two devices, have generators of their own, and run their backward passes in
// threads of autograd. They are there so that code for GPUs can be tested where there is none. A program can watch where
// a GPU would be waited for, where numbers go from device to device, and which device is a thread's current one.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr auto HERE = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex COUNT = 8;
thread_local c10::DeviceIndex current = 0;

c10::Device here() { return c10::Device(HERE, current); }

// Makes another device current as long as it lives.
struct At {
  c10::DeviceIndex before = current;
  explicit At(std::optional<at::Device> device) {
    if (device && device->has_index()) current = device->index();
  }
  ~At() { current = before; }
};

// Called with a kind of event, its name, the thread's current device, and the device that the event is on.
using Watch = void (*)(const char* kind, const char* name, int current, int index);
std::atomic<Watch> watch{nullptr};
thread_local int are_apart = 0;  // the device's own copies, in place of kernels, are no events

void tell(const char* kind, const char* name, int index) {
  Watch told = watch.load();
  if (told == nullptr || are_apart) return;
  ++are_apart;
  told(kind, name, current, index);
  --are_apart;
}

void release(void* p) { std::free(p); }

// Memory of the host that a GPU could read and write by itself. Threads that a program leaves behind may still free some
// while it ends, so that these two, as all that such threads use, are never destroyed.
std::mutex& pinned_lock = *new std::mutex;
std::map<const char*, size_t>& pinned_blocks = *new std::map<const char*, size_t>;

void release_pinned(void* p) {
  {
    std::lock_guard<std::mutex> locked(pinned_lock);
    pinned_blocks.erase(static_cast<const char*>(p));
  }
  std::free(p);
}

bool is_in_pinned(const void* p) {
  std::lock_guard<std::mutex> locked(pinned_lock);
  auto after = pinned_blocks.upper_bound(static_cast<const char*>(p));
  if (after == pinned_blocks.begin()) return false;
  --after;
  return static_cast<const char*>(p) < after->first + after->second;
}

struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* p = std::malloc(std::max<size_t>(bytes, 1));
    tell("pin", "memory of torch", current);
    std::lock_guard<std::mutex> locked(pinned_lock);
    pinned_blocks[static_cast<const char*>(p)] = std::max<size_t>(bytes, 1);
    return {p, p, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Pinned pinned_memory;

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes == 0 ? nullptr : std::malloc(bytes);
    if (p != nullptr) std::memset(p, 0xAB, bytes);  // so that what was not written is seen
    return {p, p, &release, here()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(HERE, &memory)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return HERE; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = here();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return here(); }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return COUNT; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    tell("wait", "synchronize of a stream", stream.device_index());
  }
  void synchronizeEvent(void*) const override { tell("wait", "synchronize of an event", current); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { tell("wait", "synchronize", index); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Random numbers: the CPU's generator under another device's name.
struct Draws final : at::CPUGeneratorImpl {
  explicit Draws(c10::DeviceIndex index) : at::CPUGeneratorImpl(c10::detail::getNonDeterministicRandom()) {
    device_ = c10::Device(HERE, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return COUNT; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    c10::DeviceIndex before = current;
    if (index >= 0) current = index;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* data) const override { return is_in_pinned(data); }
  at::Device getDeviceFromPtr(void*) const override { return here(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static std::vector<at::Generator>& all = *[] {
      auto* made = new std::vector<at::Generator>;
      for (c10::DeviceIndex i = 0; i < COUNT; ++i) made->push_back(at::make_generator<Draws>(i));
      return made;
    }();
    return all[index < 0 ? current : index];
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Draws>(index < 0 ? current : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    At device(storage.device());
    auto data = memory.allocate(bytes);
    if (storage.nbytes() && bytes) std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool are_hooks_there = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// With SIM_FLOAT64=refused it has no numbers of 64 bits, as GPUs of Apple and Intel.
void check_dtype(c10::ScalarType dtype) {
  const char* said = std::getenv("SIM_FLOAT64");
  bool is_refused = said != nullptr && std::strcmp(said, "refused") == 0;
  TORCH_CHECK(!is_refused || (dtype != at::kDouble && dtype != at::kComplexDouble), "the device sim has no float64");
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  check_dtype(c10::dtype_or_default(dtype));
  At at_device(device);
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  check_dtype(c10::dtype_or_default(dtype));
  At at_device(device);
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same numbers as a tensor of the CPU, which has to be given up before `x` is.
at::Tensor seen(const at::Tensor& x) {
  auto options = at::TensorOptions().dtype(x.dtype()).device(at::kCPU);
  if (x.numel() == 0) return at::empty_strided(x.sizes(), x.strides(), options);
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
}

void tell_of_copy(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return;
  int index = from.is_cpu() ? to.get_device() : from.get_device();
  if (to.is_cpu()) {
    tell("copy", "to the host", index);
    if (!non_blocking || !is_in_pinned(to.data_ptr())) tell("wait", "copy to the host", index);
  } else if (from.is_cpu()) {
    tell("copy", "from the host", index);
    if (!non_blocking) tell("wait", "copy from the host", index);  // of pageable memory too, as torch copies it
  } else if (from.device() != to.device()) {
    tell("copy", "between devices", index);
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  tell_of_copy(from, to, non_blocking);
  at::Tensor source = from.is_cpu() ? from : seen(from);
  if (to.is_cpu()) {
    const_cast<at::Tensor&>(to).copy_(source);
  } else {
    seen(to).copy_(source);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) const_cast<at::Tensor&>(to).resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& x) {
  tell("wait", "_local_scalar_dense", x.get_device());
  return at::native::_local_scalar_dense_cpu(seen(x));
}

at::Tensor& set_storage(at::Tensor& x, at::Storage source) {
  int64_t count = static_cast<int64_t>(source.nbytes() / x.element_size());
  return at::native::set_storage_cpu_(x, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& x, const at::Tensor& source) {
  return at::native::set_storage_cpu_(x, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

const at::Tensor& resize(const at::Tensor& x, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* self = x.unsafeGetTensorImpl();
  int64_t offset = x.storage_offset();
  self->set_sizes_contiguous(size);
  size_t bytes = (offset + self->numel()) * self->itemsize();
  if (self->storage().nbytes() < bytes) Hooks().resizePrivateUse1Bytes(self->storage(), bytes);
  return x;
}

// Inside, copies take the place of kernels of the device.
struct Apart {
  Apart() { ++are_apart; }
  ~Apart() { --are_apart; }
};

// Convolutions have operators of their own for other devices.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  Apart apart;
  std::optional<at::Tensor> along;
  if (bias && bias->defined()) along = seen(*bias);
  return at::convolution(seen(x), seen(weight), along, stride, padding, dilation, transposed, output_padding, groups)
      .to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> asked) {
  Apart apart;
  int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto found = at::convolution_backward(seen(gradient), seen(x), seen(weight), {channels}, stride, padding, dilation,
                                        transposed, output_padding, groups, asked);
  auto moved = [&](const at::Tensor& one) { return one.defined() ? one.to(x.device()) : one; };
  return {moved(std::get<0>(found)), moved(std::get<1>(found)), moved(std::get<2>(found))};
}

// It writes to its statistics, which its schema does not say.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double eps) {
  Apart apart;
  auto along = [](const std::optional<at::Tensor>& one) -> std::optional<at::Tensor> {
    return one && one->defined() ? std::optional<at::Tensor>(seen(*one)) : std::nullopt;
  };
  auto found = at::native_batch_norm(seen(x), along(weight), along(bias), along(mean), along(variance), training,
                                     momentum, eps);
  auto device = x.device();
  return {std::get<0>(found).to(device), std::get<1>(found).to(device), std::get<2>(found).to(device)};
}

bool is_pinned(const at::Tensor& x, std::optional<at::Device>) { return x.is_cpu() && is_in_pinned(x.data_ptr()); }

// Operators of GPUs that return numbers, or tensors of sizes that depend on numbers: the host waits for these.
const std::set<std::string>& WAITING = *new std::set<std::string>{
    "aten::equal",       "aten::nonzero",      "aten::masked_select", "aten::_unique2",     "aten::unique_dim",
    "aten::unique_consecutive", "aten::repeat_interleave", "aten::_linalg_eigh", "aten::_linalg_svd", "aten::linalg_eig",
    "aten::bincount",    "aten::_cholesky_solve_helper"};

void check(const at::Tensor& x, int& any_here, bool& any_there) {
  if (!x.defined()) return;
  if (x.device().type() == HERE) {
    TORCH_CHECK(any_here < 0 || any_here == x.get_device() || x.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, sim:", any_here,
                " and sim:", x.get_device(), "!");
    if (any_here < 0) any_here = x.get_device();
  } else if (x.is_cpu() && x.dim() > 0) {
    any_there = true;
  }
}

at::Generator on_cpu(const at::Generator& given) {
  // One that draws what `given` does: they share no state, so it is put back after use.
  auto* own = static_cast<at::CPUGeneratorImpl*>(given.unsafeGetGeneratorImpl());
  auto found = at::make_generator<at::CPUGeneratorImpl>();
  auto* inner = static_cast<at::CPUGeneratorImpl*>(found.unsafeGetGeneratorImpl());
  inner->set_state(*own->get_state());
  return found;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  int any_here = -1;
  bool any_there = false, has_host_index = false;
  at::Generator given, used;
  auto begin = stack->size() - count;
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[begin + i];
    if (value.isTensor()) {
      check(value.toTensor(), any_here, any_there);
    } else if (value.isTensorList()) {
      for (const auto& x : value.toTensorVector()) check(x, any_here, any_there);
    } else if (value.isOptionalTensorList()) {
      for (const auto& x : value.toOptionalTensorVector()) {  // indices may be of the CPU
        if (!x || !x->defined()) continue;
        has_host_index = has_host_index || (x->is_cpu() && x->dim() > 0);
      }
    } else if (value.isGenerator()) {
      given = value.toGenerator();
      TORCH_CHECK(given.device().type() == HERE, "Expected a 'sim' device type for generator but found 'cpu'");
      used = on_cpu(given);
      value = c10::IValue(used);
    }
  }
  TORCH_CHECK(!(any_here >= 0 && any_there), "Expected all tensors to be on the same device, but found at least two ",
              "devices, sim:", any_here, " and cpu! (", schema.name(), ")");
  const auto& name = schema.name();
  if (any_here >= 0 && any_here != current) tell("kernel", name.c_str(), any_here);
  bool knows_size = name == "aten::repeat_interleave" && !(*stack)[stack->size() - 1].isNone();
  if (WAITING.count(name) && !knows_size) tell("wait", name.c_str(), std::max(any_here, 0));
  if (has_host_index) tell("wait", "an index that is on the host", std::max(any_here, 0));
  Apart apart;
  At at_device(any_here < 0 ? std::nullopt : std::optional<at::Device>(c10::Device(HERE, any_here)));
  at::native::cpu_fallback(op, stack, false);
  if (used.defined()) {
    auto* own = static_cast<at::CPUGeneratorImpl*>(given.unsafeGetGeneratorImpl());
    own->set_state(*static_cast<at::CPUGeneratorImpl*>(used.unsafeGetGeneratorImpl())->get_state());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
  m.impl("is_pinned", &is_pinned);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

extern "C" {
void sim_watch(Watch told) { watch.store(told); }
int sim_current() { return current; }
void sim_set(int index) { current = static_cast<c10::DeviceIndex>(index); }
void sim_pin(void* p, size_t bytes) {
  tell("pin", "memory of Quorate", current);
  std::lock_guard<std::mutex> locked(pinned_lock);
  pinned_blocks[static_cast<const char*>(p)] = bytes;
}
void sim_unpin(void* p) {
  std::lock_guard<std::mutex> locked(pinned_lock);
  pinned_blocks.erase(static_cast<const char*>(p));
}
void sim_event(const char* kind, const char* name, int index) { tell(kind, name, index < 0 ? current : index); }
}
