// A driver for plans that are never run: there is no device, and whatever else it is asked for is done.

int cuInit(unsigned flags) { return 100; }

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

static int text(const char **to) {
    *to = "no device";
    return 0;
}
int cuGetErrorString(int error, const char **to) { return text(to); }
int cuGetErrorName(int error, const char **to) { return text(to); }

#define DOES(name) int name(void) { return 0; }
#define MAKES(name) int name(void **to) { *to = (void *)1; return 0; }

MAKES(cuCtxGetCurrent) DOES(cuCtxGetLimit) DOES(cuCtxPopCurrent) DOES(cuCtxPushCurrent)
MAKES(cuStreamGetCtx) MAKES(cuLinkCreate) DOES(cuLinkAddData) DOES(cuLinkComplete) DOES(cuLinkDestroy)
MAKES(cuLibraryLoadData) MAKES(cuLibraryLoadFromFile) MAKES(cuLibraryGetKernel) DOES(cuLibraryUnload)
MAKES(cuModuleLoadData) MAKES(cuModuleGetFunction) DOES(cuModuleUnload)
MAKES(cuKernelGetFunction) DOES(cuKernelSetAttribute) DOES(cuKernelGetAttribute)
DOES(cuOccupancyMaxPotentialClusterSize) DOES(cuTensorMapEncodeIm2col) DOES(cuTensorMapEncodeTiled)
DOES(cuLaunchKernel) DOES(cuLaunchKernelEx) DOES(cuLaunchCooperativeKernel)

int cuDeviceGetCount(int *count) {
    *count = 0;
    return 0;
}
int cuDeviceGet(int *device, int number) { return 101; }
