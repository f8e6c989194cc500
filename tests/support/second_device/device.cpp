// A device beside the CPU, of ordinary memory, on which everything is computed by the CPU's own kernels. Like a GPU it
// refuses operations on tensors of two devices, has generators of its own, and runs its backward passes in a thread of
// autograd. It is there so that code for GPUs can be tested where there is none.
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

#include <cstdlib>
#include <cstring>

namespace {

constexpr auto HERE = c10::DeviceType::PrivateUse1;
const c10::Device SIM(HERE, 0);

void release(void* p) { std::free(p); }

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes == 0 ? nullptr : std::malloc(bytes);
    if (p != nullptr) std::memset(p, 0xAB, bytes);  // so that what was not written is seen
    return {p, p, &release, SIM};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(HERE, &memory)

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return HERE; }
  c10::Device exchangeDevice(c10::Device) const override { return SIM; }
  c10::Device getDevice() const override { return SIM; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, SIM); }
  c10::Stream getNewStream(c10::Device, int) const override { return c10::Stream(c10::Stream::DEFAULT, SIM); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, SIM); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Random numbers: the CPU's generator under another device's name.
struct Draws final : at::CPUGeneratorImpl {
  explicit Draws(uint64_t seed = c10::detail::getNonDeterministicRandom()) : at::CPUGeneratorImpl(seed) {
    device_ = SIM;
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  at::Device getDeviceFromPtr(void*) const override { return SIM; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static at::Generator found = at::make_generator<Draws>(c10::detail::getNonDeterministicRandom());
    return found;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Draws>(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
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
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same numbers as a tensor of the CPU, which has to be given up before `x` is.
at::Tensor seen(const at::Tensor& x) {
  auto options = at::TensorOptions().dtype(x.dtype()).device(at::kCPU);
  if (x.numel() == 0) return at::empty_strided(x.sizes(), x.strides(), options);
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
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

at::Scalar local_scalar_dense(const at::Tensor& x) { return at::native::_local_scalar_dense_cpu(seen(x)); }

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

// Convolutions have operators of their own for other devices.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  std::optional<at::Tensor> along;
  if (bias && bias->defined()) along = seen(*bias);
  return at::convolution(seen(x), seen(weight), along, stride, padding, dilation, transposed, output_padding, groups)
      .to(SIM);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> asked) {
  int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto found = at::convolution_backward(seen(gradient), seen(x), seen(weight), {channels}, stride, padding, dilation,
                                        transposed, output_padding, groups, asked);
  auto moved = [](const at::Tensor& one) { return one.defined() ? one.to(SIM) : one; };
  return {moved(std::get<0>(found)), moved(std::get<1>(found)), moved(std::get<2>(found))};
}

// It writes to its statistics, which its schema does not say.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double eps) {
  auto along = [](const std::optional<at::Tensor>& one) -> std::optional<at::Tensor> {
    return one && one->defined() ? std::optional<at::Tensor>(seen(*one)) : std::nullopt;
  };
  auto found = at::native_batch_norm(seen(x), along(weight), along(bias), along(mean), along(variance), training,
                                     momentum, eps);
  return {std::get<0>(found).to(SIM), std::get<1>(found).to(SIM), std::get<2>(found).to(SIM)};
}

bool is_pinned(const at::Tensor&, std::optional<at::Device>) { return false; }

void check(const std::string& name, const at::Tensor& x, bool& any_here, bool& any_there) {
  if (!x.defined()) return;
  if (x.device().type() == HERE) {
    any_here = true;
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
  bool any_here = false, any_there = false;
  at::Generator given, used;
  auto begin = stack->size() - count;
  for (size_t i = 0; i < count; ++i) {
    auto& value = (*stack)[begin + i];
    if (value.isTensor()) {
      check(schema.name(), value.toTensor(), any_here, any_there);
    } else if (value.isTensorList()) {
      for (const auto& x : value.toTensorVector()) check(schema.name(), x, any_here, any_there);
    } else if (value.isOptionalTensorList()) {
      continue;  // indices may be of the CPU
    } else if (value.isGenerator()) {
      given = value.toGenerator();
      TORCH_CHECK(given.device().type() == HERE, "Expected a 'sim' device type for generator but found 'cpu'");
      used = on_cpu(given);
      value = c10::IValue(used);
    }
  }
  TORCH_CHECK(!(any_here && any_there), "Expected all tensors to be on the same device, but found at least two devices, ",
              "sim:0 and cpu! (", schema.name(), ")");
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
