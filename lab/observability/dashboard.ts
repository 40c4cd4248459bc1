// Put before the dashboards by `cargo lab test observability/dashboards`, and compiled with them: a property that this release of Grafana does not know, or
// a value that it does not take, is a type error.
import type { Dashboard, Panel, RowPanel } from '@grafana/schema';
import type * as stat from './node_modules/@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as table from './node_modules/@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from './node_modules/@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// What JSON can say of a type: a value of an enum by its text.
type Plain<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

// A dashboard's schema takes any object for what the panel's plugin knows: the plugins' own schemas are published beside it. What is not given has the
// plugin's default. Prometheus' queries have no published schema.
type Defaults = NonNullable<NonNullable<Panel['fieldConfig']>['defaults']>;
type Of<Type extends string, Options, Custom> = Plain<Omit<Panel, 'type' | 'options' | 'fieldConfig'>> & {
  type: Type;
  options: Partial<Plain<Options>>;
  fieldConfig: { defaults: Plain<Omit<Defaults, 'custom'>> & { custom: Partial<Plain<Custom>> }; overrides: [] };
};
type Known =
  | Plain<RowPanel>
  | Of<'stat', stat.Options, {}>
  | Of<'table', table.Options, table.FieldConfig>
  | Of<'timeseries', timeseries.Options, timeseries.FieldConfig>;
type Checked = Omit<Plain<Dashboard>, 'panels'> & { panels: Known[] };
