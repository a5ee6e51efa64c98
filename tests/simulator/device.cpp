/* Devices and their properties, as the environment describes them. */
#include "runtime.hpp"

#include <cstdlib>

namespace simulator
{

namespace
{

thread_local int chosen_device = 0;

/* "9.0" */
void read_capability(device_model *model)
{
    const char *text = getenv("TTRAIN_SIMULATOR_COMPUTE_CAPABILITY");
    if (text == nullptr || *text == '\0') {
        return;
    }
    char *point = nullptr, *end = nullptr;
    model->major = static_cast<int>(strtol(text, &point, 10));
    model->minor = *point == '.' ? static_cast<int>(strtol(point + 1, &end, 10)) : -1;
    if (model->major < 1 || model->minor < 0 || *end != '\0') {
        simulator_fail("environment TTRAIN_SIMULATOR_COMPUTE_CAPABILITY: expected a number like "
                       "9.0, found \"%s\"",
                       text);
    }
}

device_model read_model()
{
    device_model model = {};
    model.count = static_cast<int>(setting("TTRAIN_SIMULATOR_DEVICES", 1, 0, 64));
    model.driver = static_cast<int>(setting("TTRAIN_SIMULATOR_DRIVER", CUDART_VERSION, 0, 1000000));
    model.major = 9;
    model.minor = 0;
    read_capability(&model);
    model.multiprocessors =
        static_cast<int>(setting("TTRAIN_SIMULATOR_MULTIPROCESSORS", 4, 1, 1024));
    const int64_t mebibytes = setting("TTRAIN_SIMULATOR_MEMORY", 81920, 1, 1 << 20);
    model.memory = static_cast<size_t>(mebibytes) << 20;
    /* Any driver of the same major version will do. */
    if (model.driver / 1000 < CUDART_VERSION / 1000) {
        model.missing = cudaErrorInsufficientDriver;
    } else if (model.count == 0) {
        model.missing = cudaErrorNoDevice;
    }
    return model;
}

void fill_properties(cudaDeviceProp *to, int device)
{
    const device_model &model = devices();
    *to = cudaDeviceProp();
    snprintf(to->name, sizeof(to->name), "Simulated GPU");
    for (int i = 0; i < 16; i++) {
        to->uuid.bytes[i] = static_cast<char>(i == 15 ? device : 0x51);
    }
    to->totalGlobalMem = model.memory;
    to->sharedMemPerBlock = 48 << 10;
    to->sharedMemPerBlockOptin = model.major >= 9 ? 227 << 10 : 99 << 10;
    to->sharedMemPerMultiprocessor = model.major >= 9 ? 228 << 10 : 100 << 10;
    to->reservedSharedMemPerBlock = 1 << 10;
    to->regsPerBlock = 65536;
    to->regsPerMultiprocessor = 65536;
    to->warpSize = 32;
    to->maxThreadsPerBlock = 1024;
    to->maxThreadsDim[0] = to->maxThreadsDim[1] = 1024;
    to->maxThreadsDim[2] = 64;
    to->maxGridSize[0] = 2147483647;
    to->maxGridSize[1] = to->maxGridSize[2] = 65535;
    to->totalConstMem = 64 << 10;
    to->major = model.major;
    to->minor = model.minor;
    to->multiProcessorCount = model.multiprocessors;
    to->canMapHostMemory = 1;
    to->concurrentKernels = 1;
    to->pciBusID = device + 1;
    to->asyncEngineCount = 2;
    to->unifiedAddressing = 1;
    to->memoryBusWidth = 5120;
    to->l2CacheSize = 50 << 20;
    to->maxThreadsPerMultiProcessor = 2048;
    to->maxBlocksPerMultiProcessor = 32;
    to->cooperativeLaunch = 1;
}

} // namespace

const device_model &devices()
{
    static const device_model model = read_model();
    return model;
}

int current_device()
{
    return chosen_device;
}

cudaError_t usable(int device)
{
    const device_model &model = devices();
    if (model.missing != cudaSuccess) {
        return result(model.missing);
    }
    return result(device >= 0 && device < model.count ? cudaSuccess : cudaErrorInvalidDevice);
}

} // namespace simulator

using namespace simulator;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    const cudaError_t status = usable(0);
    if (status == cudaSuccess) {
        *count = devices().count;
    }
    return status;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device();
    return usable(0);
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t status = usable(device);
    if (status == cudaSuccess) {
        chosen_device = device;
    }
    return status;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    const cudaError_t status = usable(device);
    if (status == cudaSuccess) {
        fill_properties(properties, device);
    }
    return status;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    const cudaError_t status = usable(device);
    if (status != cudaSuccess) {
        return status;
    }
    cudaDeviceProp properties;
    fill_properties(&properties, device);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = properties.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(properties.sharedMemPerBlock);
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = properties.warpSize;
        return cudaSuccess;
    case cudaDevAttrClockRate:
        *value = 1980000;
        return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
        *value = 3201000;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = properties.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = properties.memoryBusWidth;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = properties.l2CacheSize;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = properties.maxThreadsPerMultiProcessor;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = properties.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = properties.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(properties.sharedMemPerBlockOptin);
        return cudaSuccess;
    }
    return refuse(cudaErrorInvalidValue, "cudaDeviceGetAttribute: attribute %d is not simulated",
                  static_cast<int>(attribute));
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    const cudaError_t status = usable(device);
    if (status == cudaSuccess) {
        snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", device + 1);
    }
    return status;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = devices().driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaProfilerStart(void)
{
    return cudaSuccess;
}

cudaError_t cudaProfilerStop(void)
{
    return cudaSuccess;
}

} /* extern "C" */
