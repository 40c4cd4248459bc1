// Put before the dashboards by `cargo lab test observability/dashboards`, and compiled with them: a property that Grafana 11 does not know, or a value
// that it does not take, is a type error.
import type { Dashboard } from '@grafana/schema';

// What JSON can say of a type: a value of an enum by its text.
type Plain<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

