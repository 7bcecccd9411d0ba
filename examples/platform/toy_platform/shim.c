// A vendor's plugin, made of another one: a PJRT plugin for CPU under a platform name of its own, and with one handler
// of the typed FFI, which passes its buffers on to Python.
//
// The structures are the parts of the PJRT C API and of the XLA FFI that are needed here. Both APIs only append to them.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Extension {
  size_t struct_size;
  int type;
  struct Extension* next;
} Extension;

typedef struct {
  size_t struct_size;
  Extension* extensions;
  struct {
    size_t struct_size;
    Extension* extensions;
    int major, minor;
  } version;
  void* functions[];  // in the order of the header
} Api;

enum { PLATFORM_NAME = 12 };  // the place of PJRT_Client_PlatformName among the functions

typedef struct {
  size_t struct_size;
  Extension* extensions;
  void* client;
  const char* name;
  size_t name_size;
} PlatformNameArguments;

enum { FFI_EXTENSION = 5 };

typedef struct {
  size_t struct_size;
  const char* target;
  size_t target_size;
  void* handler;
  const char* platform;
  size_t platform_size;
  int traits;
} RegisterArguments;

typedef struct {
  Extension base;
  void *type_register, *user_data_add;
  void* (*register_handler)(RegisterArguments*);
} FfiExtension;

static Api* api;

static void* platform_name(PlatformNameArguments* arguments) {
  arguments->name = TOY_DEVICES_PLATFORM;
  arguments->name_size = strlen(TOY_DEVICES_PLATFORM);
  return NULL;
}

const Api* GetPjrtApi(void) {
  if (!api) {
    void* library = dlopen(getenv("TOY_BASE_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    const Api* (*base)(void) = library ? (const Api* (*)(void))dlsym(library, "GetPjrtApi") : NULL;
    if (!base) return NULL;
    // As large as the base says that it is, which may be more than this file knows.
    api = memcpy(malloc(base()->struct_size), base(), base()->struct_size);
    api->functions[PLATFORM_NAME] = platform_name;
  }
  return api;
}

// The FFI ------------------------------------------------------------------------------------------------------------

typedef struct {
  size_t struct_size;
  Extension* extensions;
  int type;
  void* data;
  int64_t rank;
  int64_t* dimensions;
} Buffer;

typedef struct {
  size_t struct_size;
  Extension* extensions;
  int64_t count;
  int* types;
  Buffer** buffers;
} Buffers;

typedef struct {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int code;
} ErrorArguments;

typedef struct {
  size_t struct_size;
  Extension* extensions;
  struct {
    size_t struct_size;
    Extension* extensions;
    int major, minor;
  } version;
  void* internal;
  void* (*create_error)(ErrorArguments*);
} FfiApi;

typedef struct {
  int type;
  void* value;
} Scalar;

typedef struct {
  size_t struct_size;
  Extension* extensions;
  const FfiApi* api;
  void* context;
  int stage;
  Buffers operands, results;
  struct {
    size_t struct_size;
    Extension* extensions;
    int64_t count;
    int* types;
    void** names;
    Scalar** values;
  } attributes;
} CallFrame;

typedef struct {
  Extension base;
  struct {
    size_t struct_size;
    struct {
      size_t struct_size;
      Extension* extensions;
      int major, minor;
    } version;
    uint32_t traits;
  }* metadata;
} MetadataExtension;

enum { METADATA_EXTENSION = 1, EXECUTE = 3, INTERNAL = 13 };

// Returns the text of an error, or nothing.
typedef const char* (*ToPython)(uint64_t index, int64_t operands, Buffer** of_operands, int64_t results, Buffer** of_results);

static ToPython to_python;

static void* handle(CallFrame* frame) {
  for (Extension* extension = frame->extensions; extension; extension = extension->next)
    if (extension->type == METADATA_EXTENSION) {
      // XLA asks at the registration. It refuses handlers that were compiled for another version of the FFI.
      ((MetadataExtension*)extension)->metadata->version.major = frame->api->version.major;
      ((MetadataExtension*)extension)->metadata->version.minor = frame->api->version.minor;
      return NULL;
    }
  if (frame->stage != EXECUTE) return NULL;
  // The one attribute is the number of the Python function.
  const char* error = to_python(*(uint64_t*)frame->attributes.values[0]->value, frame->operands.count,
                                frame->operands.buffers, frame->results.count, frame->results.buffers);
  if (!error) return NULL;
  ErrorArguments arguments = {sizeof arguments, NULL, error, INTERNAL};
  return frame->api->create_error(&arguments);
}

// Lets custom calls to `target` call `function`. Returns 0 if the plugin has taken it.
int toy_register(const char* target, ToPython function) {
  to_python = function;
  for (Extension* extension = GetPjrtApi()->extensions; extension; extension = extension->next)
    if (extension->type == FFI_EXTENSION) {
      RegisterArguments arguments = {sizeof arguments, target, strlen(target), (void*)handle, "Host", 4, 0};
      return ((FfiExtension*)extension)->register_handler(&arguments) != NULL;
    }
  return 1;
}
