// A driver of a machine with one GPU of compute capability 7.5, which no context can be created on. It writes the number of
// hardware queues that the environment asks for when it is called first.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuDriverGetVersion(int *version) {
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    fprintf(stderr, "the driver has %s queues\n", queues ? queues : "8");
    *version = 13000;
    return 0;
}

int cuInit(unsigned flags) { return 0; }

int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int number) {
    *device = number;
    return 0;
}

int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, "Tesla T4", length);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76 };
    *value = attribute == MAJOR ? 7 : attribute == MINOR ? 5 : attribute == MULTIPROCESSORS ? 40 : 0;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)16 << 30;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return 2; }

int cuGetErrorString(int error, const char **text) {
    *text = "out of memory";
    return 0;
}

int cuGetErrorName(int error, const char **text) {
    *text = "CUDA_ERROR_OUT_OF_MEMORY";
    return 0;
}
