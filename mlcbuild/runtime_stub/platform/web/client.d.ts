// Types of client.js.

/** How far a download is. `file`: the one that bytes came for last. */
export interface PrefetchProgress {
  phase: "manifest" | "download";
  loadedBytes: number;
  totalBytes: number;
  file: string | null;
  warning?: string;
}

export interface PrefetchOptions {
  onProgress?: (progress: PrefetchProgress) => void;
  signal?: AbortSignal | null;
}

/** What `ModelRecord` of @mlc-ai/web-llm is, as far as a bundle fills it. */
export interface BundleModelRecord {
  model: string;
  model_id: string;
  model_lib: string;
  required_features: string[];
  vram_required_MB: number;
  low_resource_required: boolean;
  buffer_size_required_bytes: number;
  integrity: {
    config: string;
    model_lib: string;
    tokenizer: Record<string, string>;
    onFailure: "error";
  };
}

/** The client's record for the bundle at a URL (of its folder, or of its bundle.json). */
export function modelRecord(
  bundle: string | URL,
  options?: { signal?: AbortSignal | null },
): Promise<BundleModelRecord>;

/** Downloads and checks the bundle's files into the client's caches. Throws an `MlcbError`. */
export function prefetch(
  bundle: string | URL,
  options?: PrefetchOptions,
): Promise<{ totalBytes: number; storedBytes: number }>;

/** Removes what `prefetch` stored of a bundle. */
export function removeStored(bundle: string | URL): Promise<void>;
